package forward

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// Object is a JSON object whose top-level members have been found and nothing
// more: values stay the bytes they were, so that what is not edited arrives as
// it was sent. It must not be used after the bytes it was made of change.
type Object struct {
	raw     []byte
	members []jsonMember
	end     int // of the closing brace
}

// jsonMember is one name and its value, as offsets.
type jsonMember struct {
	name       string
	start      int // of the name's quote
	value, end int
}

var errObject = errors.New("not a JSON object")

// ParseObject finds the members of raw, which must be a JSON object. It does not
// check that the values are valid, only where they end.
func ParseObject(raw []byte) (*Object, error) {
	o := &Object{raw: raw, members: make([]jsonMember, 0, 16)}
	c := cursor{b: raw}
	if !c.eat('{') {
		return nil, errObject
	}
	if c.eat('}') {
		o.end = c.at - 1
		return o, nil
	}
	for {
		c.space()
		m := jsonMember{start: c.at}
		if !c.text() {
			return nil, errObject
		}
		name := raw[m.start+1 : c.at-1]
		if m.name = string(name); bytes.IndexByte(name, '\\') >= 0 {
			if json.Unmarshal(raw[m.start:c.at], &m.name) != nil {
				return nil, errObject
			}
		}
		if !c.eat(':') {
			return nil, errObject
		}
		c.space()
		m.value = c.at
		if !c.skip() {
			return nil, errObject
		}
		m.end = c.at
		o.members = append(o.members, m)
		if c.eat('}') {
			o.end = c.at - 1
			return o, nil
		}
		if !c.eat(',') {
			return nil, errObject
		}
	}
}

// cursor walks through JSON without judging it more than finding its ends takes.
type cursor struct {
	b  []byte
	at int
}

func (c *cursor) space() {
	for c.at < len(c.b) && (c.b[c.at] == ' ' || c.b[c.at] == '\n' || c.b[c.at] == '\t' || c.b[c.at] == '\r') {
		c.at++
	}
}

func (c *cursor) eat(want byte) bool {
	c.space()
	if c.at < len(c.b) && c.b[c.at] == want {
		c.at++
		return true
	}
	return false
}

// text passes over a string.
func (c *cursor) text() bool {
	if c.at >= len(c.b) || c.b[c.at] != '"' {
		return false
	}
	for i := c.at + 1; ; {
		n := bytes.IndexByte(c.b[i:], '"')
		if n < 0 {
			return false
		}
		i += n
		slashes := 0
		for c.b[i-1-slashes] == '\\' { // ends at the opening quote at the latest
			slashes++
		}
		i++
		if slashes%2 == 0 {
			c.at = i
			return true
		}
	}
}

// skip passes over a value of any kind.
func (c *cursor) skip() bool {
	depth, start := 0, c.at
	for c.at < len(c.b) {
		switch c.b[c.at] {
		case '"':
			if !c.text() {
				return false
			}
			if depth == 0 {
				return true
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return c.at > start
			}
			if depth--; depth == 0 {
				c.at++
				return true
			}
		case ',', ' ', '\n', '\t', '\r':
			if depth == 0 {
				return c.at > start
			}
		}
		c.at++
	}
	return false
}

// Get returns the raw value of the named member, nil when there is none. Of
// several the last counts, as in every JSON library.
func (o *Object) Get(name string) []byte {
	for i := len(o.members) - 1; i >= 0; i-- {
		if m := &o.members[i]; m.name == name {
			return o.raw[m.value:m.end]
		}
	}
	return nil
}

// Has reports whether there is a member of that name.
func (o *Object) Has(name string) bool { return o.Get(name) != nil }

// Int returns the named member if it is a whole number.
func (o *Object) Int(name string) (int, bool) {
	n, err := strconv.Atoi(string(o.Get(name)))
	return n, err == nil
}

// String returns the named member if it is a string.
func (o *Object) String(name string) (string, bool) {
	raw := o.Get(name)
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// Object returns the named member if it is an object.
func (o *Object) Object(name string) (*Object, bool) {
	in, err := ParseObject(o.Get(name))
	return in, err == nil
}

// Field is one edit: the member of that name gets the value, or is taken out
// when Value is nil.
type Field struct {
	Name  string
	Value []byte // JSON
}

// internalField begins the names of body fields between Infera's own programs;
// a client's would steer them (Infera defect P15).
const internalField = "_infera_"

// With returns the object with the fields set and without Infera's internal
// ones. A member that is replaced keeps its place, a new one comes last, in the
// order of fields; everything else is copied as it is.
func (o *Object) With(fields ...Field) []byte {
	size := len(o.raw)
	for _, f := range fields {
		size += len(f.Name) + len(f.Value) + 4
	}
	out := append(make([]byte, 0, size), o.raw[:1+bytes.IndexByte(o.raw, '{')]...)
	done := uint64(0) // fields that have found their place; there are never as many as 64
	first := true
	for i := range o.members {
		m := &o.members[i]
		if strings.HasPrefix(m.name, internalField) {
			continue
		}
		value := o.raw[m.value:m.end]
		if k := fieldOf(fields, m.name); k >= 0 {
			if done&(1<<k) != 0 || fields[k].Value == nil {
				continue
			}
			done |= 1 << k
			value = fields[k].Value
		}
		out = comma(out, first)
		out = append(append(out, o.raw[m.start:m.value]...), value...)
		first = false
	}
	for k, f := range fields {
		if done&(1<<k) == 0 && f.Value != nil {
			out = strconv.AppendQuote(comma(out, first), f.Name)
			out = append(append(out, ':'), f.Value...)
			first = false
		}
	}
	return append(out, o.raw[o.end:]...)
}

func fieldOf(fields []Field, name string) int {
	for k := range fields {
		if fields[k].Name == name {
			return k
		}
	}
	return -1
}

func comma(out []byte, first bool) []byte {
	if first {
		return out
	}
	return append(out, ',')
}

// Quote returns s as JSON.
func Quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // strings always marshal
		return []byte(`""`)
	}
	return b
}

// Number returns n as JSON.
func Number(n int) []byte { return strconv.AppendInt(nil, int64(n), 10) }

// Prefilling returns the edits that make a vLLM or ATOM engine compute the prompt
// and answer with one token (Infera prefill_single_token). min_tokens, which
// Infera leaves as it is, would make vLLM refuse the leg.
func Prefilling(body *Object) []Field {
	f := []Field{{"max_tokens", []byte("1")}, {"stream", []byte("false")}, {"stream_options", nil}}
	if body.Has("max_completion_tokens") {
		f = append(f, Field{"max_completion_tokens", []byte("1")})
	}
	if n, ok := body.Int("min_tokens"); ok && n > 1 {
		f = append(f, Field{"min_tokens", []byte("1")})
	}
	return f
}

// Remaining returns the edits that take the prefill leg's token off what the
// decode leg may generate (Infera decode_remaining).
func Remaining(body *Object) []Field {
	var f []Field
	most := -1
	for _, name := range [...]string{"max_tokens", "max_completion_tokens"} {
		if n, ok := body.Int(name); ok {
			most = max(1, n-1)
			f = append(f, Field{name, Number(most)})
		}
	}
	if n, ok := body.Int("min_tokens"); ok && most > 0 && n > most {
		f = append(f, Field{"min_tokens", Number(most)})
	}
	return f
}
