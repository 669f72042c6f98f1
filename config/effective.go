package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pointsman/internal/spell"
)

// Misspelt returns a warning for each variable of environ (as os.Environ gives
// it) that looks like one of the program's but is none. Others are left alone:
// a Pod's environment holds the worker's variables too.
func (c *Config) Misspelt(environ []string) []string {
	var known, out []string
	for _, s := range c.rows() {
		known = append(append(known, s.envs()...), s.legacy...)
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "INFERA_") && !strings.HasPrefix(name, "LLB_") || slices.Contains(known, name) {
			continue
		}
		for _, k := range known {
			if spell.Distance(name, k) <= 2 {
				out = append(out, fmt.Sprintf("variable %s is not read: did you mean %s?", name, k))
				break
			}
		}
	}
	return out
}

// Effective is one setting as the program uses it.
type Effective struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Unit   string `json:"unit"`             // int, string, seconds, ms, bool, or the words it may be
	Source Source `json:"source"`           // default, file, env, flag, pool, env:LLB_…
	From   string `json:"from,omitempty"`   // the flag, variable or key that said it
	Ignore string `json:"ignore,omitempty"` // why it has no effect, for Infera's flags that have none
}

// Effective returns every setting of the program in the order of the help text.
// Secrets show only whether they are set.
func (c *Config) Effective() []Effective {
	var out []Effective
	for _, s := range c.rows() {
		e := Effective{Name: s.name, Value: s.value.get(), Unit: s.value.kind, Source: FromDefault, Ignore: s.unused}
		if o, ok := c.origin[s.name]; ok {
			e.Source, e.From = o.source, o.from
		}
		e.Value = s.readable(e.Value)
		out = append(out, e)
	}
	return out
}

// redacted stands for a secret that is set.
const redacted = "(set)"

// readable is text as it may be shown: a secret, or what stands before the host or
// behind the path of a URL, is not.
func (s *setting) readable(text string) string {
	switch {
	case s.secret && text != "":
		return redacted
	case s.urls:
		return withoutSecrets(text)
	}
	return text
}

// withoutSecrets removes user, password, token and query from each URL of a list,
// well formed or not.
func withoutSecrets(list string) string {
	parts := strings.Split(list, ",")
	for i, part := range parts {
		scheme, rest, given := strings.Cut(part, "://")
		if !given {
			scheme, rest = "", part
		} else {
			scheme += "://"
		}
		if at := strings.LastIndexByte(rest, '@'); at >= 0 {
			rest = redacted + rest[at:]
		}
		if query := strings.IndexAny(rest, "?#"); query >= 0 {
			rest = rest[:query+1] + redacted
		}
		parts[i] = scheme + rest
	}
	return strings.Join(parts, ",")
}

// Value is one setting of a pool: what was said and what is in force. Declared
// and Effective are a number in the unit, a boolean or a word; Declared is null
// when nobody said anything.
type Value struct {
	Declared  any    `json:"declared"`
	Effective any    `json:"effective"`
	Unit      string `json:"unit"`              // s, ms, or "" for what needs none
	Source    Source `json:"source"`            // of Effective
	Clamped   bool   `json:"clamped"`           // Declared was out of range, and Effective is the bound
	Restart   bool   `json:"restart,omitempty"` // Declared waits for a restart
}

// values returns the settings that a pool's section may hold, of both programs,
// by their keys. A setting that was given by an alias stands under that key too,
// so that one can read back what one wrote.
func (c *Config) values() map[string]Value {
	out := map[string]Value{}
	for _, s := range c.everyRow() {
		if s.process || s.unused != "" {
			continue
		}
		o := c.origin[s.name]
		v := Value{Effective: s.typed(s.value.get()), Unit: s.unit(), Source: o.source, Clamped: o.clamped}
		if o.source == "" {
			v.Source = FromDefault
		}
		if o.said {
			v.Declared = s.typed(inUnit(o.alias, s.value.kind, o.declared))
		}
		if pending, waits := c.pending[s.name]; waits {
			v.Declared, v.Restart = s.typed(pending), true
		}
		out[s.key()] = v
		if o.alias != "" {
			out[o.alias] = v
		}
	}
	return out
}

// sum is a digest of what is in force in the pool, however it was said: it is
// the same in two programs that do the same.
func (c *Config) sum() string {
	inForce := map[string]any{}
	for _, s := range c.everyRow() {
		if !s.process && s.unused == "" {
			inForce[s.key()] = s.typed(s.value.get())
		}
	}
	text, err := json.Marshal(inForce) // a map's keys are sorted
	if err != nil {
		return ""
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:])
}

// unit is that of the numbers in the read-back.
func (s *setting) unit() string {
	switch s.value.kind {
	case "seconds":
		return "s"
	case "ms":
		return "ms"
	}
	return ""
}

// typed turns a text of the setting into what JSON has for it. A text that is
// none, such as a word that inherits, stays one.
func (s *setting) typed(text string) any {
	if s.secret || s.urls {
		return s.readable(text)
	}
	switch s.value.kind {
	case "bool":
		if b, err := parseBool(text); err == nil {
			return b
		}
	case "int", "number":
		if text == "" {
			return nil
		}
		if f, err := strconv.ParseFloat(text, 64); err == nil {
			return plain(f)
		}
	case "seconds", "ms":
		if d, err := parseSeconds(text); err == nil && s.value.kind == "seconds" {
			return plain(d.Seconds())
		}
		if d, err := parseMillis(text); err == nil {
			return plain(float64(d) / 1e6)
		}
	}
	return text
}

func plain(f float64) json.Number { return json.Number(strconv.FormatFloat(f, 'f', -1, 64)) }
