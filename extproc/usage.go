package extproc

import (
	"bytes"
	"math"

	"pointsman/fleet"
)

// Usage is what an engine counted of one request, beside what the pick foresaw.
type Usage struct {
	Worker       *fleet.Worker // the worker that was picked
	Reason       string        // how the prompt was prepared (prompt.Reason…)
	PromptTokens int           // usage.prompt_tokens, or Anthropic's input_tokens
	CachedTokens int           // of them found in the engine's cache; 0 when not reported
	Predicted    int           // prompt tokens that the pick counted; 0 when unknown
	PredictedHit int           // of them believed to be on the worker
}

// tailSize is how many of a response's last bytes are kept to find its usage.
const tailSize = 2 << 10

// tail keeps the last bytes of a response body, at least tailSize of them when
// there are as many.
type tail struct {
	buf [2 * tailSize]byte
	n   int
}

func (t *tail) add(chunk []byte) {
	if len(chunk) >= tailSize {
		t.n = copy(t.buf[:], chunk[len(chunk)-tailSize:])
		return
	}
	if t.n+len(chunk) > len(t.buf) {
		t.n = copy(t.buf[:], t.buf[t.n-tailSize:t.n])
	}
	t.n += copy(t.buf[t.n:], chunk)
}

func (t *tail) bytes() []byte { return t.buf[:t.n] }

// findUsage reads the last usage object in the tail of a response body, JSON or
// event stream. It looks for keys only and builds no tree: a key inside a
// string would have its quotes escaped.
func findUsage(b []byte) (prompt, cached int, ok bool) {
	for end := len(b); ; {
		at := bytes.LastIndex(b[:end], []byte(`"usage"`))
		if at < 0 {
			return 0, 0, false
		}
		object := b[at+len(`"usage"`) : end]
		if prompt, ok = number(object, `"prompt_tokens"`); ok {
			cached, _ = number(object, `"cached_tokens"`)
			return prompt, cached, true
		}
		if prompt, ok = number(object, `"input_tokens"`); ok {
			// Anthropic does not count cached tokens as input tokens.
			cached, _ = number(object, `"cache_read_input_tokens"`)
			return prompt + cached, cached, true
		}
		end = at
	}
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
	for ; digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9'; digits++ {
		if n > math.MaxInt32 {
			return 0, false
		}
		n = n*10 + int(rest[digits]-'0')
	}
	return n, digits > 0
}
