package config

import (
	"slices"
	"strconv"
	"strings"
)

// Source says where a value came from.
type Source string

// The sources, weakest first. LoxiLB's variables stand between the default and
// the file, each as its own source: "env:LLB_…".
const (
	FromDefault Source = "default"
	FromFile    Source = "file"
	FromEnv     Source = "env"
	FromFlag    Source = "flag"
	FromPool    Source = "pool" // the pool's section of the file

	// FromPickerConfig is an EndpointPickerConfig; it is weaker than the file.
	FromPickerConfig Source = "picker-config"
)

// origin is what was said of one setting.
type origin struct {
	source   Source // of the value in force
	from     string // the flag, variable or key as written; "" for the default
	declared string // the text of the strongest source that said anything; "" when none did
	said     bool
	alias    string // the key of the file that said it, when it is an alias
	clamped  bool
}

// sources are all places where a setting can be given.
type sources struct {
	pool  string // name of the pool that the program serves
	file  file
	given map[string]string // flags, by name
	other map[string]entry  // what an EndpointPickerConfig comes to; its keys are plugins
	env   func(string) (string, bool)
}

// said is one source's word on a setting.
type said struct {
	source           Source
	from, text, name string // name is the flag, variable or key as written
}

// of lists what the sources say of s, strongest first. A variable that is set
// but empty says nothing, as in Infera.
func (c *sources) of(s *setting) []said {
	var out []said
	if e, ok := c.file.pools[c.pool][s.name]; ok && !s.process {
		out = append(out, said{FromPool, "config file: " + poolsKey + "." + c.pool + "." + e.key, e.text, e.key})
	}
	if text, ok := c.given[s.name]; ok {
		out = append(out, said{FromFlag, "--" + s.name, text, s.name})
	}
	for _, name := range s.envs() {
		if text, ok := c.env(name); ok && text != "" {
			out = append(out, said{FromEnv, name, text, name})
		}
	}
	if e, ok := c.file.top[s.name]; ok {
		out = append(out, said{FromFile, "config file: " + e.key, e.text, e.key})
	}
	if e, ok := c.other[s.name]; ok {
		out = append(out, said{FromPickerConfig, "EndpointPickerConfig: " + e.key, e.text, e.key})
	}
	for _, name := range s.legacy {
		if text, ok := c.env(name); ok && text != "" {
			out = append(out, said{Source("env:" + name), name, text, name})
		}
	}
	return out
}

// resolve finds the strongest source that has a value for s, and fills the field
// with it.
func (c *sources) resolve(s *setting) (origin, error) {
	o := origin{source: FromDefault}
	for _, w := range c.of(s) {
		if !o.said {
			o.said, o.declared = true, w.text
			if slices.Contains(s.aliases, w.name) {
				o.alias = w.name
			}
		}
		if slices.Contains(s.inherit, w.text) {
			continue
		}
		o.source, o.from = w.source, w.from
		clamped, err := s.set(inUnit(w.name, s.value.kind, w.text))
		if err != nil {
			return o, &faultError{from: w.from, err: err}
		}
		o.clamped = clamped
		return o, nil
	}
	return o, nil
}

// faultError is a bad value and the place where it stands.
type faultError struct {
	from string
	err  error
}

func (e *faultError) Error() string { return e.from + ": " + e.err.Error() }
func (e *faultError) Unwrap() error { return e.err }

// inUnit converts a bare number under a name that ends in its unit, such as
// LLB_PD_MAX_PARK_SEC, to the unit of the setting.
func inUnit(name, kind, text string) string {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return text
	}
	name = strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	switch {
	case kind == "ms" && (strings.HasSuffix(name, "_sec") || strings.HasSuffix(name, "_s")):
		return number(f * 1000)
	case kind == "seconds" && strings.HasSuffix(name, "_ms"):
		return number(f / 1000)
	}
	return text
}

func (s *setting) envs() []string {
	if s.env != nil {
		return s.env
	}
	return []string{Env(s.name)}
}
