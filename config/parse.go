package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// ErrHelp is returned by [Parse] after it has printed the usage text.
var ErrHelp = pflag.ErrHelp

// Source says where a value came from.
type Source string

// The sources, weakest first.
const (
	FromDefault Source = "default"
	FromFile    Source = "file"
	FromEnv     Source = "env"
	FromFlag    Source = "flag"
)

// Parse reads args over the environment over the file that --config names over
// [Default]. It opens no port and starts nothing: a fault in any of the four is
// an error that lists all of them.
//
// lookup is os.LookupEnv, or a test's. usage receives the help text.
func Parse(prog Program, args []string, lookup func(string) (string, bool), usage io.Writer) (*Config, error) {
	c := Default(prog)
	rows := c.rows()
	flags, given := flagSet(prog, rows)
	flags.Usage = func() { writeUsage(usage, prog, rows) }
	flags.SetOutput(io.Discard) // pflag would print the error that it also returns
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil, ErrHelp
		}
		return nil, explainFlagError(err, rows)
	}
	if rest := flags.Args(); len(rest) > 0 {
		return nil, fmt.Errorf("unexpected argument %q: every setting is a flag, see --help", rest[0])
	}

	var errs []error
	file, err := fileEntries(given, lookup)
	errs = append(errs, err)
	for key := range file {
		if !slices.ContainsFunc(rows, func(s setting) bool { return s.name == key && s.name != "config" }) {
			errs = append(errs, fmt.Errorf("config file: unknown key %q%s", key, suggest(key, names(rows))))
		}
	}
	for _, s := range rows {
		src, from, text := s.lookup(given, lookup, file)
		c.origin[s.name] = origin{source: src, from: from}
		if src == FromDefault {
			continue
		}
		if err := s.value.set(text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", from, err))
		}
	}
	c.finish()
	errs = append(errs, c.Validate())
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.warnings = c.collectWarnings(rows)
	return c, nil
}

// lookup finds the strongest source that says something of s. A variable that
// is set but empty says nothing, as in Infera.
func (s *setting) lookup(given map[string]string, env func(string) (string, bool), file map[string]string) (Source, string, string) {
	if text, ok := given[s.name]; ok {
		return FromFlag, "--" + s.name, text
	}
	for _, name := range s.envs() {
		if text, ok := env(name); ok && text != "" {
			return FromEnv, name, text
		}
	}
	if text, ok := file[s.name]; ok {
		return FromFile, "config file: " + s.name, text
	}
	return FromDefault, "", ""
}

func (s *setting) envs() []string {
	if s.env != nil {
		return s.env
	}
	return []string{Env(s.name)}
}

// given is a flag's text as typed; it is set on the field later, when all
// sources are known, so that a bad value names where it came from.
type typed struct {
	name  string
	kind  string
	into  map[string]string
	value string // what a bare flag means
}

func (t typed) String() string { return "" }
func (t typed) Type() string   { return t.kind }
func (t typed) Set(text string) error {
	if t.value == "false" { // --no-x, or --no-x=true
		b, err := parseBool(text)
		if err != nil {
			return err
		}
		text = strconv.FormatBool(!b)
	}
	t.into[t.name] = text
	return nil
}

func flagSet(prog Program, rows []setting) (*pflag.FlagSet, map[string]string) {
	given := map[string]string{}
	flags := pflag.NewFlagSet(prog.String(), pflag.ContinueOnError)
	flags.SortFlags = false
	for _, s := range rows {
		f := flags.VarPF(typed{name: s.name, kind: s.value.kind, into: given}, s.name, "", s.usage)
		if s.value.kind == "bool" {
			f.NoOptDefVal = "true"
			no := flags.VarPF(typed{name: s.name, kind: "bool", into: given, value: "false"}, "no-"+s.name, "", "")
			no.NoOptDefVal, no.Hidden = "true", true
		}
	}
	return flags, given
}

func explainFlagError(err error, rows []setting) error {
	if missing := new(pflag.NotExistError); errors.As(err, &missing) {
		name := missing.GetSpecifiedName()
		return fmt.Errorf("unknown flag --%s%s; --help lists them all", name, suggest(name, names(rows)))
	}
	return err
}

func names(rows []setting) []string {
	out := make([]string, len(rows))
	for i, s := range rows {
		out[i] = s.name
	}
	return out
}

// fileEntries reads the YAML file that --config or its variable names: one flat
// mapping from flag names to values.
func fileEntries(given map[string]string, env func(string) (string, bool)) (map[string]string, error) {
	path, ok := given["config"]
	if !ok {
		path, _ = env(Env("config"))
	}
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	entries, err := decodeFile(raw)
	if err != nil {
		return nil, fmt.Errorf("config file %s: %w", path, err)
	}
	return entries, nil
}

func decodeFile(raw []byte) (map[string]string, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want one mapping from flag names to values", root.Line)
	}
	entries := make(map[string]string, len(root.Content)/2)
	var errs []error
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, val := root.Content[i], root.Content[i+1]
		name := strings.ReplaceAll(key.Value, "_", "-")
		switch {
		case val.Kind != yaml.ScalarNode:
			errs = append(errs, fmt.Errorf("line %d: %s: want a single value", val.Line, key.Value))
			continue
		case val.Tag == "!!null":
			errs = append(errs, fmt.Errorf("line %d: %s: has no value; leave the key out for the default", val.Line, key.Value))
			continue
		}
		if _, dup := entries[name]; dup {
			errs = append(errs, fmt.Errorf("line %d: %s: given twice", key.Line, key.Value))
		}
		entries[name] = val.Value
	}
	return entries, errors.Join(errs...)
}
