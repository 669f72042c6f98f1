package tokens

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// normStep is one step of a file's normalizer.
type normStep struct {
	kind     normKind
	compat   bool   // of form
	compose  bool   // of form
	from, to []byte // of replace; to of prepend
}

type normKind uint8

const (
	normForm normKind = iota // NFC and the like
	normLower
	normReplace
	normPrepend
)

type normalizerFile struct {
	Type        string            `json:"type"`
	Normalizers []json.RawMessage `json:"normalizers"`
	Prepend     string            `json:"prepend"`
	Pattern     patternFile       `json:"pattern"`
	Content     string            `json:"content"`
}

type patternFile struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

func readNormalizer(steps []normStep, raw []byte) ([]normStep, error) {
	if isNull(raw) {
		return steps, nil
	}
	var f normalizerFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, malformed("normalizer: %v", err)
	}
	switch f.Type {
	case "Sequence":
		for _, part := range f.Normalizers {
			var err error
			if steps, err = readNormalizer(steps, part); err != nil {
				return nil, err
			}
		}
		return steps, nil
	case "NFC", "NFD", "NFKC", "NFKD":
		return append(steps, normStep{kind: normForm, compat: len(f.Type) == 4, compose: f.Type[len(f.Type)-1] == 'C'}), nil
	case "Lowercase":
		return append(steps, normStep{kind: normLower}), nil
	case "Prepend":
		return append(steps, normStep{kind: normPrepend, to: []byte(f.Prepend)}), nil
	case "Replace":
		if f.Pattern.String == nil || *f.Pattern.String == "" {
			return nil, unsupported("normalizer", "Replace with a pattern that is not plain text: %s", raw)
		}
		return append(steps, normStep{kind: normReplace, from: []byte(*f.Pattern.String), to: []byte(f.Content)}), nil
	}
	return nil, unsupported("normalizer", "%s", raw)
}

// replacesAll reports whether no text s is left after the steps.
func replacesAll(steps []normStep, s string) bool {
	gone := false
	for _, step := range steps {
		switch step.kind {
		case normReplace:
			gone = gone && !bytes.Contains(step.to, []byte(s)) ||
				string(step.from) == s && !bytes.Contains(step.to, []byte(s))
		case normPrepend:
			gone = gone && !bytes.Contains(step.to, []byte(s))
		case normForm:
			gone = gone && !step.compat && s == " "
		case normLower:
		}
	}
	return gone
}

// normalize returns src after the steps: src itself when nothing changes, else
// scratch of e. A stretch that continues another gets nothing prepended.
func (e *encoder) normalize(t *unicodeTables, steps []normStep, src []byte, continued bool) []byte {
	cur, free := src, 0
	for i := range steps {
		step := &steps[i]
		out, changed := e.norm[free][:0], false
		switch step.kind {
		case normForm:
			e.form.tables, e.form.compat, e.form.compose = t, step.compat, step.compose
			out, changed = e.form.append(out, cur)
		case normLower:
			out, changed = lowercase(t, out, cur)
		case normReplace:
			out, changed = replace(out, cur, step.from, step.to)
		case normPrepend:
			if len(cur) > 0 && !continued {
				out, changed = append(append(out, step.to...), cur...), true
			}
		}
		if changed {
			e.norm[free] = out
			cur, free = out, 1-free
		}
	}
	return cur
}

func replace(dst, src, from, to []byte) ([]byte, bool) {
	at := bytes.Index(src, from)
	if at < 0 {
		return dst, false
	}
	if len(from) == 1 {
		for _, c := range src {
			if c == from[0] {
				dst = append(dst, to...)
			} else {
				dst = append(dst, c)
			}
		}
		return dst, true
	}
	for at >= 0 {
		dst = append(append(dst, src[:at]...), to...)
		src = src[at+len(from):]
		at = bytes.Index(src, from)
	}
	return append(dst, src...), true
}

func lowercase(t *unicodeTables, dst, src []byte) ([]byte, bool) {
	changed := false
	for i := 0; i < len(src); {
		c, n := t.at(src, i)
		if c&cased == 0 {
			if changed {
				dst = append(dst, src[i:i+n]...)
			}
			i += n
			continue
		}
		if !changed {
			changed = true
			dst = append(dst, src[:i]...)
		}
		r, _ := utf8.DecodeRune(src[i:])
		dst = append(dst, t.toLower[r]...)
		i += n
	}
	return dst, changed
}
