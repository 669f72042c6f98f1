package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
)

// ErrHelp is returned by [Parse] after it has printed the usage text.
var ErrHelp = pflag.ErrHelp

// Parse reads the pool's section of the file over args over the environment over
// the rest of the file that --config names over LoxiLB's variables over
// [Default]. It opens no port and starts nothing: a fault in any of them is an
// error that lists all.
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
	src := sources{given: given, env: lookup}
	errs := []error{c.fill(&src)}
	c.finish()
	errs = append(errs, c.Validate(), errors.Join(c.contradictions()...))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c.warnings = c.collectWarnings(rows)
	c.again = func() (*Config, error) { return Parse(prog, args, lookup, usage) }
	return c, nil
}

// fill reads the file and sets every field that src says something of. The
// settings of the other program are filled too, since both are given one file;
// only a fault in the file is one of this program's then.
func (c *Config) fill(src *sources) error {
	all := c.everyRow()
	var err error
	src.file, err = readFile(src.given, src.env, all)
	errs := []error{err, c.readPickerConfig(src)}
	for _, s := range all {
		if s.name == "pool-name" {
			o, err := src.resolve(&s)
			c.origin[s.name], src.pool = o, c.Pool
			errs = append(errs, err)
		}
	}
	for _, s := range all {
		if s.name == "pool-name" {
			continue
		}
		o, err := src.resolve(&s)
		if err != nil && s.in&c.Program == 0 && o.source != FromFile && o.source != FromPool {
			continue
		}
		c.origin[s.name] = o
		errs = append(errs, err)
	}
	c.fileText = src.file.text
	c.filePools = slices.Sorted(maps.Keys(src.file.pools))
	return errors.Join(append(errs, c.checkOtherPools(src)...)...)
}

// checkOtherPools looks for faults in the sections that are not of the program's
// pool: the file is refused whole, wherever it is read.
func (c *Config) checkOtherPools(src *sources) []error {
	var errs []error
	for _, name := range c.filePools {
		if name == src.pool {
			continue
		}
		scratch := Default(c.Program)
		other := sources{pool: name, file: file{pools: src.file.pools}, env: func(string) (string, bool) { return "", false }}
		for _, s := range scratch.everyRow() {
			if _, err := other.resolve(&s); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errs
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
		f := flags.VarPF(typed{name: s.name, kind: s.value.kind, into: given}, s.name, s.short, s.usage)
		if s.value.kind == "bool" {
			f.NoOptDefVal = "true"
			no := flags.VarPF(typed{name: s.name, kind: "bool", into: given, value: "false"}, "no-"+s.name, "", "")
			no.NoOptDefVal, no.Hidden = "true", true
		}
		for _, name := range s.was {
			flags.VarPF(typed{name: s.name, kind: s.value.kind, into: given}, name, "", s.usage).Hidden = true
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
