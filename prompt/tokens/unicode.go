//nolint:gosec // code points and table rows are small
package tokens

import (
	_ "embed" // for unicode.txt
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

//go:embed unicode.txt
var unicodeText string

// class is a set of properties of one code point.
type class uint16

const (
	letter  class = 1 << iota // \p{L}
	number                    // \p{N}
	mark                      // \p{M}
	punct                     // \p{P}
	symbol                    // \p{S}
	space                     // \s
	upper                     // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lower                     // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	newline                   // \r or \n
	wordly                    // \w of the regex crate, for single_word tokens
	han                       // \p{Han}
	kana                      // [一-龥぀-ゟ゠-ヿ], a piece of its own for DeepSeek
	unNFC                     // NFC may change it or what stands before it
	unNFD                     // NFD or NFKD may change it
	cased                     // Lowercase changes it
	casedUp                   // \p{Lu} or \p{Lt}, only while the tables are built
)

const maxRune = 0x10ffff

// unicodeTables are the reference's Unicode data. Immutable once loaded.
type unicodeTables struct {
	ascii  [utf8.RuneSelf]class
	blocks [(maxRune + 1) >> 8]uint16 // of 256 code points, index into rows
	rows   [][256]class

	canon   map[rune]string // full canonical decomposition, without Hangul
	compat  map[rune]string // full compatibility decomposition where it differs
	toLower map[rune]string
	ccc     map[rune]uint8   // combining class where not 0
	compose map[[2]rune]rune // primary composites, without Hangul
}

// sharedTables holds the one copy that all tokenizers of the process read.
//
//nolint:gochecknoglobals // an immutable table, read from unicode.txt on first use
var sharedTables = sync.OnceValue(loadTables)

// at returns the class of the code point that starts at b[i], and its length. The
// text must be valid UTF-8.
func (t *unicodeTables) at(b []byte, i int) (class, int) {
	if c := b[i]; c < utf8.RuneSelf {
		return t.ascii[c], 1
	}
	r, n := runeAt(b, i)
	return t.of(r), n
}

// of returns the class of r.
func (t *unicodeTables) of(r rune) class {
	return t.rows[t.blocks[r>>8]][r&0xff]
}

// runeAt decodes the code point of two or more bytes that starts at b[i]. The text
// must be valid UTF-8.
func runeAt(b []byte, i int) (rune, int) {
	switch c := b[i]; {
	case c < 0xe0:
		return rune(c&0x1f)<<6 | rune(b[i+1]&0x3f), 2
	case c < 0xf0:
		s := b[i : i+3]
		return rune(c&0x0f)<<12 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3
	default:
		s := b[i : i+4]
		return rune(c&0x07)<<18 | rune(s[1]&0x3f)<<12 | rune(s[2]&0x3f)<<6 | rune(s[3]&0x3f), 4
	}
}

// lastRune returns where the code point that ends at b[i] starts. The text must be
// valid UTF-8 and i positive.
func lastRune(b []byte, i int) int {
	for i--; i > 0 && b[i]&0xc0 == 0x80; i-- {
	}
	return i
}

// loadTables reads unicode.txt. The file is part of the program, so a fault in it
// is a fault of the build and panics.
func loadTables() *unicodeTables {
	t := &unicodeTables{
		canon: map[rune]string{}, compat: map[rune]string{}, toLower: map[rune]string{},
		ccc: map[rune]uint8{}, compose: map[[2]rune]rune{},
	}
	flat := make([]class, maxRune+1)
	for line := range strings.Lines(unicodeText) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch kind {
		case "class":
			name, runs, _ := strings.Cut(rest, " ")
			markRuns(flat, runs, classBits(name))
		case "ccc":
			value, runs, _ := strings.Cut(rest, " ")
			n := parseInt(value, 10)
			eachRun(runs, func(r rune) { t.ccc[r] = uint8(n) })
		case "canon":
			readMapping(rest, t.canon)
		case "compat":
			readMapping(rest, t.compat)
		case "lower":
			readMapping(rest, t.toLower)
		case "compose":
			pairs := map[rune]string{}
			readMapping(rest, pairs)
			for r, s := range pairs {
				p := []rune(s)
				t.compose[[2]rune{p[0], p[1]}] = r
			}
		}
	}
	t.derive(flat)
	t.pack(flat)
	return t
}

func classBits(name string) class {
	return map[string]class{
		"L": letter, "N": number, "M": mark, "P": punct, "S": symbol, "s": space,
		"U": casedUp, "l": lower, "H": han, "w": wordly,
	}[name]
}

// derive sets the classes that follow from others.
func (t *unicodeTables) derive(flat []class) {
	for r := range flat {
		c := flat[r]
		switch {
		case c&mark != 0 || c&letter != 0 && c&(casedUp|lower) == 0:
			c |= upper | lower
		case c&casedUp != 0:
			c |= upper
		}
		if r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff {
			c |= kana
		}
		flat[r] = c &^ casedUp
	}
	flat['\r'] |= newline
	flat['\n'] |= newline
	t.deriveNormal(flat)
}

// deriveNormal flags the code points that a normalizer must look at.
func (t *unicodeTables) deriveNormal(flat []class) {
	composites := make(map[rune]bool, len(t.compose))
	for pair, r := range t.compose {
		composites[r] = true
		flat[pair[1]] |= unNFC // it may join what stands before it
	}
	for r := range t.canon {
		flat[r] |= unNFD
		if !composites[r] {
			flat[r] |= unNFC
		}
	}
	for r := range t.compat {
		flat[r] |= unNFD
	}
	for r := range t.ccc {
		flat[r] |= unNFC | unNFD
	}
	for r := range t.toLower {
		flat[r] |= cased
	}
	for r := rune(hangulV); r < hangulV+hangulVCount; r++ {
		flat[r] |= unNFC
	}
	for r := rune(hangulT) + 1; r < hangulT+hangulTCount; r++ {
		flat[r] |= unNFC
	}
	for r := rune(hangulS); r < hangulS+hangulSCount; r++ {
		flat[r] |= unNFD
	}
}

// pack stores equal rows of 256 code points once.
func (t *unicodeTables) pack(flat []class) {
	copy(t.ascii[:], flat)
	known := map[[256]class]uint16{}
	for i := range t.blocks {
		row := [256]class(flat[i<<8 : (i+1)<<8])
		at, ok := known[row]
		if !ok {
			at = uint16(len(t.rows))
			known[row] = at
			t.rows = append(t.rows, row)
		}
		t.blocks[i] = at
	}
}

func markRuns(flat []class, runs string, bits class) {
	eachRun(runs, func(r rune) { flat[r] |= bits })
}

// eachRun calls f for each code point of "gap+length gap+length …".
func eachRun(runs string, f func(r rune)) {
	at := 0
	for run := range strings.FieldsSeq(runs) {
		gap, length, _ := strings.Cut(run, "+")
		at += parseInt(gap, 36)
		for end := at + parseInt(length, 36); at < end; at++ {
			f(rune(at))
		}
	}
}

// readMapping reads "from=to,to from=to …" into m.
func readMapping(text string, m map[rune]string) {
	for field := range strings.FieldsSeq(text) {
		from, to, _ := strings.Cut(field, "=")
		var s strings.Builder
		for r := range strings.SplitSeq(to, ",") {
			s.WriteRune(rune(parseInt(r, 36)))
		}
		m[rune(parseInt(from, 36))] = s.String()
	}
}

func parseInt(s string, base int) int {
	n, err := strconv.ParseInt(s, base, 32)
	if err != nil {
		panic("tokens: unicode.txt: " + err.Error())
	}
	return int(n)
}
