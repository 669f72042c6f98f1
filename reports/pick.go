package reports

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
)

// MaxMarks is how many hashes a [Trail] has at most.
const MaxMarks = 8

// Trail is a prompt in a few of its blocks' hashes, as a picker makes it for others
// (picker.Trail); forwarders pass it on as it is. The zero value is none.
type Trail struct {
	Size, Blocks int // tokens per block; blocks of the prompt
	N            int // of Hashes
	Hashes       [MaxMarks]uint64
}

// appendMarks appends the hashes in base64.
func (t *Trail) appendMarks(dst []byte) []byte {
	var raw [8 * MaxMarks]byte
	for i, h := range t.Hashes[:t.N] {
		binary.BigEndian.PutUint64(raw[8*i:], h)
	}
	return base64.RawURLEncoding.AppendEncode(dst, raw[:8*t.N])
}

// Marks returns the hashes as text, "" for none.
func (t *Trail) Marks() string { return string(t.appendMarks(nil)) }

// ParseTrail puts a trail together from numbers and the text of Marks; the zero Trail
// when they are none.
func ParseTrail(size, blocks int, marks string) Trail {
	var raw [8 * MaxMarks]byte
	if base64.RawURLEncoding.DecodedLen(len(marks)) > len(raw) {
		return Trail{}
	}
	n, err := base64.RawURLEncoding.Decode(raw[:], []byte(marks))
	if err != nil || n == 0 || n%8 != 0 || size < 1 || size > maxTokens || blocks < 1 || blocks > maxTokens {
		return Trail{}
	}
	t := Trail{Size: size, Blocks: blocks, N: n / 8}
	for i := range t.N {
		t.Hashes[i] = binary.BigEndian.Uint64(raw[8*i:])
	}
	return t
}

// Pick is what a picker tells a forwarder of a request, in the header
// x-infera-picker-id: "ID;n=7;p=1200;m=300;a=800;s=16;b=75;h=MARKS". All but the ID
// may be absent.
type Pick struct {
	Ref

	Prompt int // tokens of the prompt; 0 unknown
	Miss   int // tokens to compute
	Added  int // tokens that no other request of the picker on the worker shares

	// Trail is of the prompt, which the worker's cache will have.
	Trail Trail
}

// Header carries a [Pick] from a picker to a forwarder.
const Header = "x-infera-picker-id"

// maxTokens bounds what a header can claim of a prompt.
const maxTokens = 1 << 26

// MaxID bounds the length of a picker's or forwarder's ID.
const MaxID = 128

// ValidID reports whether id can name a picker or forwarder: letters, digits, dot,
// underscore and dash.
func ValidID(id string) bool {
	if id == "" || len(id) > MaxID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// Append appends the header's value.
func (p *Pick) Append(dst []byte) []byte {
	dst = append(dst, p.Picker...)
	for _, f := range [...]struct {
		key string
		n   uint64
	}{
		{";n=", p.Pick},
		{";p=", clamp(p.Prompt)},
		{";m=", clamp(p.Miss)},
		{";a=", clamp(p.Added)},
	} {
		dst = strconv.AppendUint(append(dst, f.key...), f.n, 10)
	}
	t := &p.Trail
	if t.N == 0 {
		return dst
	}
	before := len(dst)
	dst = strconv.AppendInt(append(dst, ";s="...), int64(t.Size), 10)
	dst = strconv.AppendInt(append(dst, ";b="...), int64(t.Blocks), 10)
	if dst = t.appendMarks(append(dst, ";h="...)); len(dst) > maxHeader {
		dst = dst[:before] // a forwarder would take no part of it
	}
	return dst
}

// maxHeader is how long a header is at most that is read.
const maxHeader = 2 * MaxID

func clamp(n int) uint64 {
	return uint64(min(max(n, 0), maxTokens))
}

// ParsePick reads the header's value. What it does not understand it skips: a value
// without a usable ID is the zero Pick.
func ParsePick(value string) Pick {
	id, rest, _ := strings.Cut(value, ";")
	if id = strings.TrimSpace(id); !ValidID(id) || len(value) > maxHeader {
		return Pick{}
	}
	p := Pick{Ref: Ref{Picker: id}}
	size, blocks, marks := 0, 0, ""
	for part := range strings.SplitSeq(rest, ";") {
		key, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		if key == "h" {
			marks = text
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			continue
		}
		tokens := int(min(n, maxTokens))
		switch key {
		case "n":
			p.Pick = n
		case "p":
			p.Prompt = tokens
		case "m":
			p.Miss = tokens
		case "a":
			p.Added = tokens
		case "s":
			size = tokens
		case "b":
			blocks = tokens
		}
	}
	p.Trail = ParseTrail(size, blocks, marks)
	return p
}
