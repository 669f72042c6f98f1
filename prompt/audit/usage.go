package audit

import (
	"bytes"
	"math"
)

// tailSize is how many of a response's last bytes are kept to find its usage.
const tailSize = 2 << 10

// Tail keeps the last bytes of a response body, where engines report usage. The
// zero value is empty. It holds 4 KiB: keep it for further requests.
type Tail struct {
	buf  [2 * tailSize]byte
	n    int
	read bool // told is what is in it
	told told
}

// told is what a body's last usage object says.
type told struct {
	counted, cached, output int
	ok                      bool
}

// Reset empties t.
func (t *Tail) Reset() { t.n, t.read = 0, false }

// Add appends a piece of the body.
func (t *Tail) Add(chunk []byte) {
	t.read = false
	if len(chunk) >= tailSize {
		t.n = copy(t.buf[:], chunk[len(chunk)-tailSize:])
		return
	}
	if t.n+len(chunk) > len(t.buf) {
		t.n = copy(t.buf[:], t.buf[t.n-tailSize:t.n])
	}
	t.n += copy(t.buf[t.n:], chunk)
}

// Usage completes r with the last usage object in the body, be it JSON or an
// event stream. It reports whether there is one; when not, and r was
// [Comparable], r is no more.
func (t *Tail) Usage(r *Report) bool {
	if !t.read {
		t.read, t.told = true, usageIn(t.buf[:t.n])
	}
	if t.told.ok {
		r.Counted, r.Cached, r.Output = t.told.counted, t.told.cached, t.told.output
	} else if r.Skip == Comparable {
		r.Skip = SkipNoUsage
	}
	return t.told.ok
}

func usageIn(b []byte) (u told) {
	if u.counted, u.cached, u.ok = findUsage(b); u.ok {
		u.output = findOutput(b)
	}
	return u
}

// findUsage looks for keys only and builds no tree: a key inside a string would
// have its quotes escaped. cached is -1 when the engine does not report it, as
// vLLM without --enable-prompt-tokens-details.
func findUsage(b []byte) (counted, cached int, ok bool) {
	for end := len(b); ; {
		at := lastIndex(b[:end], []byte(`"usage"`))
		if at < 0 {
			return 0, -1, false
		}
		object := b[at+len(`"usage"`) : end]
		if counted, ok = number(object, `"prompt_tokens"`); ok {
			if cached, ok = number(object, `"cached_tokens"`); !ok {
				cached = -1
			}
			return counted, cached, true
		}
		if counted, ok = number(object, `"input_tokens"`); ok {
			// Anthropic does not count cached tokens as input tokens.
			cached, _ = number(object, `"cache_read_input_tokens"`)
			return counted + cached, cached, true
		}
		end = at
	}
}

// lastIndex is bytes.LastIndex by way of bytes.Index, which looks at many bytes at once:
// most of what is searched has no usage in it.
func lastIndex(b, key []byte) int {
	last := -1
	for from := 0; ; from = last + 1 {
		at := bytes.Index(b[from:], key)
		if at < 0 {
			return last
		}
		last = from + at
	}
}

// findOutput returns how many tokens the engine has generated, as the last usage
// object says; 0 when it does not.
func findOutput(b []byte) int {
	for _, key := range [...]string{`"completion_tokens"`, `"output_tokens"`} {
		if at := lastIndex(b, []byte(key)); at >= 0 {
			n, _ := number(b[at:], key)
			return n
		}
	}
	return 0
}

// number returns the value of the first occurrence of key in b.
func number(b []byte, key string) (int, bool) {
	_, rest, found := bytes.Cut(b, []byte(key))
	if !found {
		return 0, false
	}
	rest = bytes.TrimLeft(rest, " \t\r\n")
	if len(rest) == 0 || rest[0] != ':' {
		return 0, false
	}
	rest = bytes.TrimLeft(rest[1:], " \t\r\n")
	n, digits := 0, 0
	for digits < len(rest) && rest[digits]-'0' <= 9 {
		if n > (math.MaxInt-9)/10 {
			return 0, false
		}
		n = 10*n + int(rest[digits]-'0')
		digits++
	}
	return n, digits > 0
}
