package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pointsman/internal/spell"
)

// Program is the binary that a setting belongs to.
type Program uint8

// The two programs that are configured.
const (
	EPP Program = 1 << iota
	Forwarder

	Both = EPP | Forwarder
)

// String returns the binary's name.
func (p Program) String() string {
	switch p {
	case EPP:
		return "epp"
	case Forwarder:
		return "forwarder"
	}
	return "epp, forwarder"
}

// setting is one thing an operator can say: the flag, its environment
// variables, the key in the file and the field it fills are all read from here,
// and so are the help text, the reference page and the read-back.
type setting struct {
	name    string   // flag name and file key; the read-back's key is it with underscores
	was     []string // former names of the flag: accepted, and not shown
	aliases []string // further keys of the file, exactly as written: LoxiLB's spellings
	env     []string // variables, first found wins; nil derives INFERA_NAME
	legacy  []string // LoxiLB's variables (LLB_…), first found wins; they beat only the default
	inherit []string // texts that say nothing: the next weaker source is asked ("inherit", or a 0 that means so)
	short   string   // one-letter flag; "" for none
	group   string
	usage   string
	in      Program
	process bool   // of the whole process: it has no place in a pool's section
	restart bool   // a change of the file waits for a restart, though its group is tuned while running
	live    bool   // a change of the file holds for new requests; set by [tuned]
	clamp   bool   // out of range takes the nearest bound and shows so, where the seed clamps; else it is refused
	secret  bool   // shown as "(set)"
	urls    bool   // may hold URLs with a password or token in them, which are not shown
	unused  string // accepted for Infera's command lines, and why it does nothing here
	value   value
}

// rangeError is a text that is understood and outside the range of its setting.
type rangeError struct {
	text, nearest string // nearest is the bound that it misses, as set takes it
	lo, hi        string
}

func (e *rangeError) Error() string {
	return fmt.Sprintf("%s is out of range %s to %s", e.text, e.lo, e.hi)
}

// inRange returns a rangeError when v is not within lo and hi. show writes a
// value so that set reads it back.
func inRange[T cmp.Ordered](v, lo, hi T, show func(T) string) error {
	if v >= lo && v <= hi {
		return nil
	}
	return &rangeError{show(v), show(min(max(v, lo), hi)), show(lo), show(hi)}
}

// set fills the field from text. clamped says that it took a bound instead.
func (s *setting) set(text string) (clamped bool, err error) {
	err = s.value.set(text)
	if out := new(rangeError); s.clamp && errors.As(err, &out) {
		return true, s.value.set(out.nearest)
	}
	return false, err
}

// key is the setting's name in the read-back and, as in YAML one is used to, in
// the file.
func (s *setting) key() string { return strings.ReplaceAll(s.name, "-", "_") }

// value reads and prints one field. set gets the text of a flag, variable or
// file entry.
type value struct {
	kind string // shown in the help: int, string, seconds, …
	set  func(text string) error
	get  func() string
}

func stringValue(p *string) value {
	return value{"string", func(s string) error { *p = s; return nil }, func() string { return *p }}
}

// mapValue reads KEY=VALUE pairs with commas between them.
func mapValue(p *map[string]string) value {
	return value{"name=model,…", func(s string) error {
		pairs := map[string]string{}
		for pair := range strings.SplitSeq(s, ",") {
			key, val, ok := strings.Cut(strings.TrimSpace(pair), "=")
			switch _, twice := pairs[key]; {
			case pair == "" && s == "":
				continue
			case !ok || key == "" || val == "":
				return fmt.Errorf("%q is not NAME=MODEL", pair)
			case twice:
				return fmt.Errorf("%q is given twice", key)
			}
			pairs[key] = val
		}
		*p = pairs
		return nil
	}, func() string {
		var pairs []string
		for _, key := range slices.Sorted(maps.Keys(*p)) {
			pairs = append(pairs, key+"="+(*p)[key])
		}
		return strings.Join(pairs, ",")
	}}
}

// oneOf is a string out of a list.
func oneOf(p *string, words ...string) value {
	return value{strings.Join(words, "|"), func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("%q is not one of %s%s", s, strings.Join(words, ", "), suggest(s, words))
		}
		*p = s
		return nil
	}, func() string { return *p }}
}

// noneOr is oneOf the words, or none, which is "".
func noneOr(p *string, words ...string) value {
	all := append([]string{"none"}, words...)
	return value{strings.Join(all, "|"), func(s string) error {
		var word string
		if err := oneOf(&word, all...).set(s); err != nil {
			return err
		}
		if word == "none" {
			word = ""
		}
		*p = word
		return nil
	}, func() string { return cmp.Or(*p, "none") }}
}

func intValue(p *int, lo, hi int) value {
	return value{"int", func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", s)
		}
		if err := inRange(n, lo, hi, strconv.Itoa); err != nil {
			return err
		}
		*p = n
		return nil
	}, func() string { return strconv.Itoa(*p) }}
}

func int64Value(p *int64, lo, hi int64) value {
	return value{"int", func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", s)
		}
		if err := inRange(n, lo, hi, decimal); err != nil {
			return err
		}
		*p = n
		return nil
	}, func() string { return decimal(*p) }}
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func number(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// portValue takes 0 only where a setting says what 0 means.
func portValue(p *int) value { return intValue(p, 0, 65535) }

// weightsValue is a fixed number of weights with commas.
func weightsValue(weights ...*float64) value {
	return value{"number,…", func(s string) error {
		parts := strings.Split(s, ",")
		if len(parts) != len(weights) {
			return fmt.Errorf("%q: want %d numbers with commas", s, len(weights))
		}
		for i, part := range parts {
			if err := floatValue(weights[i], 0, 1e6).set(strings.TrimSpace(part)); err != nil {
				return err
			}
		}
		return nil
	}, func() string {
		var parts []string
		for _, w := range weights {
			parts = append(parts, number(*w))
		}
		return strings.Join(parts, ",")
	}}
}

// portsValue is a list of ports with commas, in brackets or not.
func portsValue(p *[]int) value {
	return value{"port,…", func(s string) error {
		ports := []int{}
		for part := range strings.SplitSeq(strings.Trim(s, "[]"), ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			var n int
			if err := intValue(&n, 1, 65535).set(part); err != nil {
				return err
			}
			ports = append(ports, n)
		}
		*p = ports
		return nil
	}, func() string {
		var parts []string
		for _, n := range *p {
			parts = append(parts, strconv.Itoa(n))
		}
		return strings.Join(parts, ",")
	}}
}

func boolValue(p *bool) value {
	return value{"bool", func(s string) error {
		b, err := parseBool(s)
		if err != nil {
			return err
		}
		*p = b
		return nil
	}, func() string { return strconv.FormatBool(*p) }}
}

// parseBool takes the words that Infera's argparse takes from the environment.
func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "t", "true", "yes", "y", "on":
		return true, nil
	case "0", "f", "false", "no", "n", "off":
		return false, nil
	}
	return false, fmt.Errorf("%q is not true or false", s)
}

func floatValue(p *float64, lo, hi float64) value {
	return value{"number", func(s string) error {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || f != f {
			return fmt.Errorf("%q is not a number", s)
		}
		if err := inRange(f, lo, hi, number); err != nil {
			return err
		}
		*p = f
		return nil
	}, func() string { return number(*p) }}
}

// optionalFloat is unset (nil) when the text is empty.
func optionalFloat(p **float64, lo, hi float64) value {
	return value{"number", func(s string) error {
		if s == "" {
			*p = nil
			return nil
		}
		var f float64
		if err := floatValue(&f, lo, hi).set(s); err != nil {
			return err
		}
		*p = &f
		return nil
	}, func() string {
		if *p == nil {
			return ""
		}
		return number(**p)
	}}
}

// percent is a share given in percent.
func percent(p *float64) value {
	return value{"percent", func(s string) error {
		f := *p * 100
		if err := floatValue(&f, 0, 100).set(s); err != nil {
			return err
		}
		*p = f / 100
		return nil
	}, func() string { return number(*p * 100) }}
}

// seconds is a duration given as a number of seconds, as Infera's flags are;
// Go's notation (500ms, 2m) is taken too.
func seconds(p *time.Duration, lo, hi time.Duration) value {
	return value{"seconds", func(s string) error {
		d, err := parseSeconds(s)
		if err != nil {
			return err
		}
		if err := inRange(d, lo, hi, time.Duration.String); err != nil {
			return err
		}
		*p = d
		return nil
	}, func() string { return number(p.Seconds()) }}
}

func parseSeconds(s string) (time.Duration, error) {
	if f, err := strconv.ParseFloat(s, 64); err == nil && f == f {
		if f > maxSeconds || f < -maxSeconds {
			return 0, fmt.Errorf("%s seconds is too long", s)
		}
		return time.Duration(f * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of seconds nor a duration such as 500ms", s)
	}
	return d, nil
}

// maxSeconds is what a time.Duration holds, rounded down.
const maxSeconds = 9e9

// millis is a duration given as a number of milliseconds.
func millis(p *time.Duration, lo, hi time.Duration) value {
	return value{"ms", func(s string) error {
		d, err := parseMillis(s)
		if err != nil {
			return err
		}
		if err := inRange(d, lo, hi, time.Duration.String); err != nil {
			return err
		}
		*p = d
		return nil
	}, func() string {
		return number(float64(*p) / float64(time.Millisecond))
	}}
}

func parseMillis(s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || f != f || f > maxSeconds || f < -maxSeconds {
		return 0, fmt.Errorf("%q is not a number of milliseconds nor a duration such as 2s", s)
	}
	return time.Duration(f * float64(time.Millisecond)), nil
}

// Env is the variable that sets a flag unless its table row names others:
// --breaker-cooldown-s is INFERA_BREAKER_COOLDOWN_S.
func Env(flagName string) string {
	return "INFERA_" + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// suggest names the word nearest to s, when one is near.
func suggest(s string, words []string) string {
	best, at := 4, ""
	for _, w := range words {
		if d := spell.Distance(s, w); d < best && d <= max(1, len(w)/3) {
			best, at = d, w
		}
	}
	if at == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", at)
}
