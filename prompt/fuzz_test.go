package prompt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pointsman/kvindex"
)

func seeds() []string {
	return []string{
		``, `{}`, `{}0`, `{"model":"m"}`, `[]`, `{"model":"m","messages":[{"role":"user","content":"hi \u00e9\ud83d\ude00\n"}]}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}},"b"]}],"tools":[{"cache_control":{"type":"ephemeral","ttl":"1h"}}]}`,
		`{"model":"m","prompt":[1,2,3],"n":2,"stream":true}`, `{"model":"m","prompt":[[1],[2,3]]}`, `{"model":"m","prompt":["a","b"],"best_of":1e0}`,
		`{"model":"m","system":[{"type":"text","text":"x"}],"messages":[{"role":"assistant","content":null,"tool_calls":[{"a":"b"}]}],"max_tokens":1}`,
		`{"x":[1,2.5e-3,-0,true,false,null,{"y":[{}]}]}`, "{\"x\":\"\xff\"}", `{"x":"\ud800"}`, `{"x":01}`, `{"x":1.}`, `{"a":1,}`, `{"mod\u0065l":"m"}`,
		"\xef\xbb\xbf{}", `{"x":"` + strings.Repeat("a", 70) + `\\"}`, strings.Repeat("[", 70), `{"x":` + strings.Repeat("[", 61) + strings.Repeat("]", 61) + `}`,
	}
}

// depthOf returns how deeply valid JSON is nested.
func depthOf(b []byte) int {
	depth, deepest := 0, 0
	dec := json.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := dec.Token()
		if err != nil {
			return deepest
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			depth++
			deepest = max(deepest, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// FuzzScan holds the grammar against encoding/json: both accept the same bodies,
// up to the differences that the package comment names.
func FuzzScan(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		// Without any known key only the grammar decides.
		s := scanner{b: body}
		s.space()
		ok := s.skip(1)
		if ok {
			s.space()
			ok = s.i == len(body)
		}
		want := json.Valid(body) && utf8.Valid(body) && depthOf(body) <= MaxDepth
		if ok != want {
			t.Fatalf("skip accepts %q: %v (%v), want %v", body, ok, s.err, want)
		}
		for _, kind := range []Kind{Chat, Completions, Messages, Other} {
			scanOne(t, kind, body, want)
		}
	})
}

func scanOne(t *testing.T, kind Kind, body []byte, valid bool) {
	t.Helper()
	var r Request
	err := r.Scan(kind, nil, body)
	if err == nil {
		if kind == Other {
			return
		}
		if !valid {
			t.Fatalf("%v: Scan accepts %q", kind, body)
		}
		var want struct{ m map[string]json.RawMessage }
		if json.Unmarshal(body, &want.m) != nil {
			t.Fatalf("encoding/json refuses %q", body)
		}
		var model string
		if json.Unmarshal(want.m["model"], &model) != nil || model != r.Model {
			t.Fatalf("%v: model of %q is %q, want %q", kind, body, r.Model, model)
		}
		checkMessages(t, kind, &r, want.m["messages"])
		return
	}
	var bad *BadRequest
	if !errors.As(err, &bad) || bad.Message == "" || bad.Status < 400 || bad.Offset > len(body) {
		t.Fatalf("%v: Scan(%q) = %#v", kind, body, err)
	}
	if valid && bad.Code == CodeInvalidJSON && len(bytes.TrimLeft(body, " \t\r\n")) > 0 && bytes.TrimLeft(body, " \t\r\n")[0] == '{' {
		t.Fatalf("%v: Scan(%q) calls a valid body %v", kind, body, err)
	}
	if !valid && kind != Other && bad.Code == CodeNoModel {
		t.Fatalf("%v: Scan accepts the invalid %q but for its model", kind, body)
	}
}

// checkMessages compares the views with what encoding/json decodes.
func checkMessages(t *testing.T, kind Kind, r *Request, raw json.RawMessage) {
	t.Helper()
	if kind == Completions || r.LoneSurrogates {
		return
	}
	var want []json.RawMessage
	if json.Unmarshal(raw, &want) != nil {
		return
	}
	i := 0
	for m := range r.Messages() {
		if !bytes.Equal(bytes.TrimSpace(want[i]), m.Raw) {
			t.Fatalf("message %d is %s, want %s", i, m.Raw, want[i])
		}
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(want[i], &fields); err != nil {
			t.Fatal(err)
		}
		var content string
		if m.IsText && (json.Unmarshal(fields["content"], &content) != nil || content != m.Content.String()) {
			t.Fatalf("content %d is %q, want %s", i, m.Content.String(), fields["content"])
		}
		i++
	}
	if i != len(want) && !r.Partial() {
		t.Fatalf("%d messages, want %d", i, len(want))
	}
}

// FuzzPrepare checks what hashing promises for any body: it never fails, another
// spelling of the same JSON has the same hashes, and one more turn keeps all of
// them.
func FuzzPrepare(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s), "and then?")
	}
	f.Fuzz(func(t *testing.T, body []byte, next string) {
		p := NewPreparer(Config{ApproxBlockTokens: 2, BytesPerToken: 2}, nil)
		for _, kind := range []Kind{Chat, Completions, Messages} {
			var r Request
			if r.Scan(kind, nil, body) != nil || r.LoneSurrogates {
				continue
			}
			var out Prepared
			p.Prepare(context.Background(), &r, []int{1, 3}, &out)
			if out.Reason == "" || out.Tokens < 0 || len(out.Blocks) == 0 {
				t.Fatalf("%v: %q: %+v", kind, body, out)
			}
			got := cloneBlocks(out.Blocks)
			if again := respell(t, body); again != nil && r.Scan(kind, nil, again) == nil {
				p.Prepare(context.Background(), &r, []int{1, 3}, &out)
				if !samePrefix(got, out.Blocks) || !samePrefix(out.Blocks, got) {
					t.Fatalf("%v: %q and %q hash differently", kind, body, again)
				}
			}
			if longer := addTurn(body, next); kind != Completions && longer != nil && r.Scan(kind, nil, longer) == nil {
				p.Prepare(context.Background(), &r, []int{1, 3}, &out)
				if !samePrefix(got, out.Blocks) {
					t.Fatalf("%v: a further turn changes the hashes of %q", kind, body)
				}
			}
		}
	})
}

func cloneBlocks(in []kvindex.Blocks) (out []kvindex.Blocks) {
	for _, b := range in {
		out = append(out, kvindex.Blocks{Size: b.Size, Hashes: append([]kvindex.Hash(nil), b.Hashes...)})
	}
	return out
}

// samePrefix reports whether every list of a is a beginning of that of b.
func samePrefix(a, b []kvindex.Blocks) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Size != b[i].Size || len(a[i].Hashes) > len(b[i].Hashes) {
			return false
		}
		for j, h := range a[i].Hashes {
			if b[i].Hashes[j] != h {
				return false
			}
		}
	}
	return true
}

// respell writes the same JSON with every character as an escape and other
// white space, keeping the order and number of keys. It returns nil when the body
// is no object.
func respell(t *testing.T, body []byte) []byte {
	t.Helper()
	var out []byte
	s := scanner{b: body}
	for s.i < len(body) {
		switch c := body[s.i]; c {
		case ' ', '\n', '\t', '\r':
			s.i++
		case '"':
			text, ok := s.str()
			if !ok {
				return nil
			}
			out = append(out, '"')
			for _, r := range text.String() {
				switch {
				case r >= 0x10000:
					hi, lo := (r-0x10000)>>10+surrLow, (r-0x10000)&0x3FF+surrMid
					out = appendEscape(appendEscape(out, hi), lo)
				default:
					out = appendEscape(out, r)
				}
			}
			out = append(out, '"')
		case '{', '[', ',', ':':
			out = append(out, c, '\n', ' ')
			s.i++
		default:
			out = append(out, c)
			s.i++
		}
	}
	return out
}

func appendEscape(dst []byte, r rune) []byte {
	const digits = "0123456789ABCDEF"
	return append(dst, '\\', 'u', digits[r>>12&15], digits[r>>8&15], digits[r>>4&15], digits[r&15])
}

// addTurn appends a message to the array that ends the value of messages.
func addTurn(body []byte, text string) []byte {
	var r Request
	if r.Scan(Chat, nil, body) != nil || len(r.msgs) == 0 || r.partial {
		return nil
	}
	quoted, err := json.Marshal(text)
	if err != nil {
		return nil
	}
	old := r.raw[keyMessages]
	end := cap(body) - cap(old) + len(old) - 1 // of the closing bracket
	out := append([]byte(nil), body[:end]...)
	out = append(out, `,{"role":"user","content":`...)
	out = append(append(out, quoted...), '}')
	return append(out, body[end:]...)
}
