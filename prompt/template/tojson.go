package template

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonStyle is how transformers' tojson writes: json.dumps with ensure_ascii off.
type jsonStyle struct {
	ascii, sortKeys  bool
	indent           string
	pretty           bool
	itemSep, pairSep string
}

// filterToJSON is transformers' own tojson, which escapes nothing for HTML.
func filterToJSON(r *run, v value, a *args) value {
	p := a.bind(r, "tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	st := jsonStyle{itemSep: ", ", pairSep: ": ", ascii: r.truth(p[0]), sortKeys: r.truth(p[3])}
	switch p[1].k {
	case kMissing, kNone:
	case kInt, kBool:
		n := max(p[1].n, 0)
		if n > workUnit {
			r.limit("an indent is too wide")
		}
		st.indent, st.pretty, st.itemSep = strings.Repeat(" ", int(n)), true, ","
	case kStr:
		st.indent, st.pretty, st.itemSep = p[1].s, true, ","
	default:
		r.typeError("can't multiply sequence by non-int of type '%s'", typeName(p[1]))
	}
	if p[2].k != kMissing && p[2].k != kNone {
		pair := r.seq(p[2])
		if len(pair) != 2 {
			r.fail("ValueError", "not enough values to unpack (expected 2, got %d)", len(pair))
		}
		st.itemSep, st.pairSep = r.text("separator", pair[0]), r.text("separator", pair[1])
	}
	b := r.appendJSON(r.scratch[:0], v, &st, 0)
	r.alloc(len(b))
	s := string(b)
	if cap(b) <= retainedBytes {
		r.scratch = b
	}
	return strValue(s)
}

func (r *run) appendJSON(b []byte, v value, st *jsonStyle, level int) []byte {
	r.step()
	if len(b) > r.mem/4 { // growing copies, and the text is copied once more
		r.limit("too much memory")
	}
	switch v.k {
	case kNone:
		return append(b, "null"...)
	case kBool:
		return strconv.AppendBool(b, v.n != 0)
	case kInt:
		return strconv.AppendInt(b, v.n, 10)
	case kBig:
		return r.appendBig(b, v.o.(*big.Int))
	case kFloat:
		return appendJSONFloat(b, v.float())
	case kStr:
		r.work(len(v.s))
		return appendJSONString(b, v.s, st.ascii)
	case kList, kTuple:
		return r.appendJSONList(b, v.items(), st, level)
	case kDict:
		return r.appendJSONDict(b, v.dict(), st, level)
	}
	r.typeError("Object of type %s is not JSON serializable", typeName(v))
	return b
}

func (r *run) newline(b []byte, st *jsonStyle, level int) []byte {
	if !st.pretty {
		return b
	}
	r.work(level * len(st.indent))
	b = append(b, '\n')
	for range level {
		b = append(b, st.indent...)
	}
	return b
}

func (r *run) appendJSONList(b []byte, items []value, st *jsonStyle, level int) []byte {
	if len(items) == 0 {
		return append(b, "[]"...)
	}
	r.enter()
	b = append(b, '[')
	for i, x := range items {
		if i > 0 {
			b = append(b, st.itemSep...)
		}
		b = r.newline(b, st, level+1)
		b = r.appendJSON(b, x, st, level+1)
	}
	r.leave()
	return append(r.newline(b, st, level), ']')
}

func (r *run) appendJSONDict(b []byte, d *dict, st *jsonStyle, level int) []byte {
	if len(d.entries) == 0 {
		return append(b, "{}"...)
	}
	r.enter()
	entries := d.entries
	if st.sortKeys {
		r.alloc(len(entries) * 2 * valueSize)
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(x, y entry) int {
			return r.sortOrder(r.tuple([]value{x.key, x.val}), r.tuple([]value{y.key, y.val}))
		})
	}
	b = append(b, '{')
	for i := range entries {
		if i > 0 {
			b = append(b, st.itemSep...)
		}
		b = r.newline(b, st, level+1)
		b = r.appendJSONKey(b, entries[i].key, st)
		b = append(b, st.pairSep...)
		b = r.appendJSON(b, entries[i].val, st, level+1)
	}
	r.leave()
	return append(r.newline(b, st, level), '}')
}

func (r *run) appendJSONKey(b []byte, k value, st *jsonStyle) []byte {
	switch k.k {
	case kStr:
		r.work(len(k.s))
		return appendJSONString(b, k.s, st.ascii)
	case kNone, kBool, kInt, kBig, kFloat:
		b = append(b, '"')
		b = r.appendJSON(b, k, st, 0)
		return append(b, '"')
	}
	r.typeError("keys must be str, int, float, bool or None, not %s", typeName(k))
	return b
}

func appendJSONFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	}
	return appendFloat(b, f)
}

func asciiLen(s string) int {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return i
		}
	}
	return len(s)
}

// appendJSONString escapes only what JSON must, as Python does.
func appendJSONString(b []byte, s string, ascii bool) []byte {
	b = append(b, '"')
	for s != "" {
		n := plainLen(s)
		if ascii {
			n = asciiLen(s[:n])
		}
		b = append(b, s[:n]...)
		if s = s[n:]; s == "" {
			break
		}
		c := s[0]
		if c >= utf8.RuneSelf {
			rn, size := utf8.DecodeRuneInString(s)
			b = appendJSONRune(b, rn)
			s = s[size:]
			continue
		}
		s = s[1:]
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\t':
			b = append(b, '\\', 't')
		case '\r':
			b = append(b, '\\', 'r')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigit(c>>4), hexDigit(c))
		}
	}
	return append(b, '"')
}

func appendJSONRune(b []byte, rn rune) []byte {
	if rn > 0xffff {
		rn -= 0x10000
		b = appendEscaped(b, 0xd800+rn>>10)
		return appendEscaped(b, 0xdc00+rn&0x3ff)
	}
	if rn <= 0xff {
		return append(b, '\\', 'u', '0', '0', hexDigit(byte(rn>>4&15)), hexDigit(byte(rn&15)))
	}
	return appendEscaped(b, rn)
}
