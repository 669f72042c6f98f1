package reports

import (
	"strconv"
	"strings"
)

// Pick is what a picker tells a forwarder of a request, in the header
// x-infera-picker-id: "ID;n=7;p=1200;m=300;a=800". All but the ID may be absent.
type Pick struct {
	Ref

	Prompt int // tokens of the prompt; 0 unknown
	Miss   int // tokens to compute
	Added  int // tokens that no other request of the picker on the worker shares
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
	return dst
}

func clamp(n int) uint64 {
	return uint64(min(max(n, 0), maxTokens))
}

// ParsePick reads the header's value. What it does not understand it skips: a value
// without a usable ID is the zero Pick.
func ParsePick(value string) Pick {
	id, rest, _ := strings.Cut(value, ";")
	if id = strings.TrimSpace(id); !ValidID(id) || len(value) > 2*MaxID {
		return Pick{}
	}
	p := Pick{Ref: Ref{Picker: id}}
	for part := range strings.SplitSeq(rest, ";") {
		key, text, _ := strings.Cut(strings.TrimSpace(part), "=")
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
		}
	}
	return p
}
