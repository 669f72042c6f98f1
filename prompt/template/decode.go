package template

import (
	"encoding/binary"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder reads JSON into values as Python's json.loads does: objects keep their
// order, the last of equal keys wins in the place of the first, numbers keep being
// integers, null is None, NaN and Infinity are read. Strings without escapes share
// the text.
type decoder struct {
	r   *run
	src string
	pos int
	n   int // values read
}

// decode reads one JSON text. The values share its memory, which outlives them:
// nothing of a rendering is left but a copy.
func (r *run) decode(raw []byte) value {
	if !utf8.Valid(raw) {
		panic(inputError("not UTF-8"))
	}
	r.alloc(len(raw))
	return r.decodeString(view(raw), 0)
}

func (r *run) decodeString(src string, from int) value {
	d := decoder{r: r, src: src, pos: from}
	d.space()
	v := d.value()
	d.space()
	if d.pos != len(d.src) {
		d.fail("more after the end")
	}
	return v
}

func (d *decoder) fail(what string) {
	panic(inputError("JSON at byte " + strconv.Itoa(d.pos) + ": " + what))
}

func (d *decoder) space() {
	for d.pos < len(d.src) {
		switch d.src[d.pos] {
		case ' ', '\t', '\n', '\r':
			d.pos++
		default:
			return
		}
	}
}

func (d *decoder) value() value {
	d.n++
	if !d.r.fixedSteps {
		d.r.steps += stepsPerValue
	}
	if d.pos >= len(d.src) {
		d.fail("ends too soon")
	}
	switch c := d.src[d.pos]; c {
	case '"':
		return strValue(d.str())
	case '{':
		d.r.enter()
		v := d.object()
		d.r.leave()
		return v
	case '[':
		d.r.enter()
		v := d.array()
		d.r.leave()
		return v
	case 't':
		return d.word("true", boolValue(true))
	case 'f':
		return d.word("false", boolValue(false))
	case 'n':
		return d.word("null", none())
	case 'N', 'I':
		f := map[byte]string{'N': "NaN", 'I': "Infinity"}[c]
		x, _ := strconv.ParseFloat(f, 64)
		return d.word(f, floatValue(x))
	}
	return d.number()
}

func (d *decoder) word(w string, v value) value {
	if !strings.HasPrefix(d.src[d.pos:], w) {
		d.fail("unknown word")
	}
	d.pos += len(w)
	return v
}

func (d *decoder) object() value {
	d.pos++
	d.space()
	base := len(d.r.stack)
	for first := true; ; first = false {
		if d.pos < len(d.src) && d.src[d.pos] == '}' && first {
			break
		}
		if d.pos >= len(d.src) || d.src[d.pos] != '"' {
			d.fail("a key is expected")
		}
		key := strValue(d.str())
		d.space()
		if d.pos >= len(d.src) || d.src[d.pos] != ':' {
			d.fail("':' is expected")
		}
		d.pos++
		d.space()
		v := d.value()
		d.r.stack = append(d.r.stack, key, v)
		d.space()
		if d.pos < len(d.src) && d.src[d.pos] == ',' {
			d.pos++
			d.space()
			continue
		}
		break
	}
	if d.pos >= len(d.src) || d.src[d.pos] != '}' {
		d.fail("'}' is expected")
	}
	d.pos++
	pairs := d.r.stack[base:]
	obj := d.r.newDict(len(pairs) / 2)
	for i := 0; i < len(pairs); i += 2 {
		if obj.index == nil && obj.find(pairs[i].s) < 0 {
			obj.entries = append(obj.entries, entry{pairs[i], pairs[i+1]})
			obj.noteLast(d.r)
			continue
		}
		obj.set(d.r, pairs[i], pairs[i+1])
	}
	d.r.stack = d.r.stack[:base]
	return dictOf(obj)
}

func (d *decoder) array() value {
	d.pos++
	d.space()
	base := len(d.r.stack)
	for first := true; ; first = false {
		if d.pos < len(d.src) && d.src[d.pos] == ']' && first {
			break
		}
		v := d.value()
		d.r.stack = append(d.r.stack, v)
		d.space()
		if d.pos < len(d.src) && d.src[d.pos] == ',' {
			d.pos++
			d.space()
			continue
		}
		break
	}
	if d.pos >= len(d.src) || d.src[d.pos] != ']' {
		d.fail("']' is expected")
	}
	d.pos++
	items := d.r.values(len(d.r.stack) - base)
	copy(items, d.r.stack[base:])
	d.r.stack = d.r.stack[:base]
	return d.r.list(items)
}

// str reads a string; the quote is at pos.
func (d *decoder) str() string {
	s := d.src[d.pos+1:]
	n := plainLen(s)
	if n < len(s) {
		switch s[n] {
		case '"':
			d.pos += n + 2
			return s[:n]
		case '\\':
			return d.escaped(s, n)
		}
		d.fail("a control character in a string")
	}
	d.fail("a string does not end")
	return ""
}

// escaped reads a string whose first escape is at s[at], into the arena: decoded
// text is never longer than its source.
func (d *decoder) escaped(s string, at int) string {
	buf := d.r.room(len(s) + 8)
	n := copy(buf, s[:at])
	for i := at; i < len(s); {
		if i+8 <= len(s) {
			w := load8(s, i)
			binary.LittleEndian.PutUint64(buf[n:], w)
			k := plainBytes(w)
			n, i = n+k, i+k
			if k == 8 {
				continue
			}
		}
		switch c := s[i]; {
		case c == '"':
			d.pos += i + 2
			return d.r.keep(n)
		case c == '\\':
			if i+1 < len(s) && shortEscapes[s[i+1]] != 0 {
				buf[n] = shortEscapes[s[i+1]]
				n, i = n+1, i+2
				continue
			}
			long := d.longEscape(s[i:])
			n += utf8.EncodeRune(buf[n:], long.char)
			i += long.size
		case c < 0x20:
			d.fail("a control character in a string")
		default:
			buf[n] = c
			n, i = n+1, i+1
		}
	}
	d.fail("a string does not end")
	return ""
}

// plainLen is the length of the text before the first quote, backslash or control
// character: eight bytes at a time.
func plainLen(s string) int {
	i := 0
	for ; i+8 <= len(s); i += 8 {
		if n := plainBytes(load8(s, i)); n < 8 {
			return i + n
		}
	}
	for ; i < len(s); i++ {
		if c := s[i]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
	}
	return i
}

// load8 is s[i:i+8] in one load.
func load8(s string, i int) uint64 {
	t := s[i : i+8]
	return uint64(t[0]) | uint64(t[1])<<8 | uint64(t[2])<<16 | uint64(t[3])<<24 |
		uint64(t[4])<<32 | uint64(t[5])<<40 | uint64(t[6])<<48 | uint64(t[7])<<56
}

// plainBytes is how many of the eight bytes come before the first quote, backslash
// or control character.
func plainBytes(w uint64) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	quote, slash := w^ones*'"', w^ones*'\\'
	// A byte of these is zero, or below 0x20, where the high bit comes out set.
	hit := (quote-ones)&^quote | (slash-ones)&^slash | (w-ones*0x20)&^w
	return bits.TrailingZeros64(hit&highs) / 8
}

// shortEscapes is what the escapes of two characters stand for; 0 is none.
//
//nolint:gochecknoglobals // an immutable table
var shortEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'n': '\n', 't': '\t', 'r': '\r', 'b': '\b', 'f': '\f'}

type longEscape struct {
	char rune
	size int // of the escape
}

// longEscape reads an escape that is not one of shortEscapes.
func (d *decoder) longEscape(s string) longEscape {
	if len(s) < 2 {
		d.fail("a string does not end")
	}
	if s[1] != 'u' {
		d.fail("unknown escape")
	}
	c := d.hex4(s)
	switch {
	case c >= 0xd800 && c < 0xdc00 && len(s) >= 12 && s[6] == '\\' && s[7] == 'u':
		if low := d.hex4(s[6:]); low >= 0xdc00 && low < 0xe000 {
			return longEscape{0x10000 + (c-0xd800)<<10 + (low - 0xdc00), 12}
		}
		panic(inputError("a lone surrogate"))
	case c >= 0xd800 && c < 0xe000:
		// Python's str holds it, and the tokenizer then refuses the text.
		panic(inputError("a lone surrogate"))
	}
	return longEscape{c, 6}
}

func (d *decoder) hex4(s string) rune {
	if len(s) < 6 {
		d.fail("a string does not end")
	}
	n, err := strconv.ParseUint(s[2:6], 16, 32)
	if err != nil || s[2] == '+' {
		d.fail("bad \\u escape")
	}
	return rune(n) //nolint:gosec // four digits
}

func (d *decoder) number() value {
	s := d.src[d.pos:]
	n, float := 0, false
	if n < len(s) && s[n] == '-' {
		n++
	}
	if strings.HasPrefix(s[n:], "Infinity") {
		d.pos += n + len("Infinity")
		f, _ := strconv.ParseFloat("-Inf", 64)
		return floatValue(f)
	}
	digits := func() int {
		from := n
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		return n - from
	}
	from := n
	if k := digits(); k == 0 || k > 1 && s[from] == '0' {
		d.fail("a value is expected")
	}
	if n+1 < len(s) && s[n] == '.' && s[n+1] >= '0' && s[n+1] <= '9' {
		n++
		digits()
		float = true
	}
	if n < len(s) && s[n]|0x20 == 'e' {
		mark := n
		n++
		if n < len(s) && (s[n] == '+' || s[n] == '-') {
			n++
		}
		if digits() == 0 {
			n = mark
		} else {
			float = true
		}
	}
	d.pos += n
	if float {
		f, _ := strconv.ParseFloat(s[:n], 64) // out of range is Inf or 0, as in Python
		return floatValue(f)
	}
	if i, err := strconv.ParseInt(s[:n], 10, 64); err == nil {
		return intValue(i)
	}
	if n > maxIntDigits {
		d.fail("an integer of more than 4300 digits")
	}
	b, _ := new(big.Int).SetString(s[:n], 10)
	return bigValue(b)
}
