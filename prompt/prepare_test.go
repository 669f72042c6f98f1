package prompt

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pointsman/kvindex"
)

// fakeTokenizer answers with fixed ids, or fails.
type fakeTokenizer struct {
	ids   []uint32
	err   error
	calls int
}

func (f *fakeTokenizer) Tokenize(_ context.Context, _ *Request, dst []uint32) ([]uint32, error) {
	f.calls++
	return append(dst, f.ids...), f.err
}

func prepare(t *testing.T, tok Tokenizer, kind Kind, body string, sizes ...int) Prepared {
	t.Helper()
	var out Prepared
	NewPreparer(Config{}, tok).Prepare(t.Context(), mustScan(t, kind, body), sizes, &out)
	return out
}

func ids(n int) (out []uint32) {
	for i := range n {
		out = append(out, uint32(i+1))
	}
	return out
}

func idList(n int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ids(n))), ","), "")
}

func TestTokenIDsInTheRequestAreExact(t *testing.T) {
	out := prepare(t, nil, Completions, `{"model":"m","prompt":`+idList(48)+`}`, 16, 4, 0)
	if out.Reason != ReasonExact || out.Approx || out.Tokens != 48 || len(out.Blocks) != 2 {
		t.Fatalf("%+v", out)
	}
	// Vector of the contract, made with Infera's hasher.py.
	want := []kvindex.Hash{0x73d57c846a7f6b4e, 0xdcb64a9b2a68aec4, 0x06c3e6be56d5609f}
	if out.Blocks[0].Size != 16 || !slices.Equal(out.Blocks[0].Hashes, want) {
		t.Errorf("blocks of 16: %x, want %x", out.Blocks[0].Hashes, want)
	}
	if out.Blocks[1].Size != 4 || len(out.Blocks[1].Hashes) != 12 || out.Blocks[1].Hashes[0] != 0x341839abbe30be0b {
		t.Errorf("blocks of 4: %x", out.Blocks[1].Hashes)
	}
}

func TestABatchIsHashedByItsFirstPromptAndCountedWhole(t *testing.T) {
	one := prepare(t, nil, Completions, `{"model":"m","prompt":`+idList(16)+`}`, 16)
	batch := prepare(t, nil, Completions, `{"model":"m","prompt":[`+idList(16)+`,[1,2,3],[9]]}`, 16)
	if !samePrefix(one.Blocks, batch.Blocks) || batch.Tokens != 20 || batch.Reason != ReasonExact {
		t.Errorf("%+v", batch)
	}
	text := strings.Repeat("a", 64)
	one = prepare(t, nil, Completions, `{"model":"m","prompt":"`+text+`"}`, 16)
	batch = prepare(t, nil, Completions, `{"model":"m","prompt":["`+text+`","`+text+`"]}`, 16)
	if !samePrefix(one.Blocks, batch.Blocks) || one.Tokens != 16 || batch.Tokens != 32 {
		t.Errorf("%d tokens, batch %+v", one.Tokens, batch)
	}
}

func TestAnAdapterOrASaltSharesNoBlocks(t *testing.T) {
	seen := map[kvindex.Hash]string{}
	for _, keys := range []string{``, `,"lora_path":"a"`, `,"cache_salt":"a"`, `,"lora_path":"b"`, `,"lora_path":"a","cache_salt":"a"`} {
		for _, body := range []string{`{"model":"m","prompt":` + idList(16) + keys + `}`, `{"model":"m","prompt":"` + strings.Repeat("x", 64) + `"` + keys + `}`} {
			out := prepare(t, nil, Completions, body, 16)
			h := out.Blocks[0].Hashes[0]
			if seen[h] != "" {
				t.Errorf("%s and %s share a block", seen[h], body)
			}
			seen[h] = body
		}
	}
}

func TestReasons(t *testing.T) {
	chat := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 40) + `"}]}`
	good := &fakeTokenizer{ids: ids(40)}
	for name, tt := range map[string]struct {
		tok    Tokenizer
		kind   Kind
		body   string
		sizes  []int
		reason string
		approx bool
		tokens int
		lists  []int // blocks per list
	}{
		"a tokenizer answers":                    {good, Chat, chat, []int{16, 32}, ReasonExact, false, 40, []int{2, 1}},
		"no tokenizer":                           {nil, Chat, chat, []int{16, 32}, ReasonApprox, true, 51, []int{3}},
		"no block size is known":                 {good, Chat, chat, nil, ReasonApprox, true, 51, []int{3}},
		"the tokenizer fails":                    {&fakeTokenizer{err: errors.New("down")}, Chat, chat, []int{16}, ReasonNoTokens, true, 51, []int{3}},
		"fewer tokens than a block":              {&fakeTokenizer{ids: ids(15)}, Chat, chat, []int{16}, ReasonShortPrompt, false, 15, []int{0}},
		"less text than a block":                 {nil, Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, []int{16}, ReasonShortPrompt, true, 2, []int{0}},
		"no prompt":                              {nil, Completions, `{"model":"m"}`, []int{16}, ReasonShortPrompt, true, 0, []int{0}},
		"an image":                               {good, Chat, `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":"u"}]}]}`, []int{16}, ReasonMultimodal, true, 3, []int{0}},
		"half a surrogate":                       {good, Chat, strings.Replace(chat, "word", `\ud800`, 1), []int{16}, ReasonNoTokens, true, 51, []int{3}},
		"half a surrogate without a tokenizer":   {nil, Chat, strings.Replace(chat, "word", `\ud800`, 1), []int{16}, ReasonApprox, true, 51, []int{3}},
		"token ids while no block size is known": {nil, Completions, `{"model":"m","prompt":` + idList(40) + `}`, nil, ReasonApprox, true, 40, []int{2}},
		"another path":                           {good, Other, chat, []int{16}, ReasonOtherPath, false, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := prepare(t, tt.tok, tt.kind, tt.body, tt.sizes...)
			var lists []int
			for _, b := range out.Blocks {
				lists = append(lists, len(b.Hashes))
			}
			if out.Reason != tt.reason || out.Approx != tt.approx || out.Tokens != tt.tokens || !slices.Equal(lists, tt.lists) {
				t.Errorf("reason %s, approx %v, %d tokens, lists %v; want %s, %v, %d, %v",
					out.Reason, out.Approx, out.Tokens, lists, tt.reason, tt.approx, tt.tokens, tt.lists)
			}
		})
	}
}

func TestTheTokenizerIsNotAskedInVain(t *testing.T) {
	tok := &fakeTokenizer{}
	prepare(t, tok, Completions, `{"model":"m","prompt":[1]}`, 16)
	prepare(t, tok, Chat, `{"model":"m","messages":[{"content":"\ud800"}]}`, 16)
	prepare(t, tok, Chat, `{"model":"m","messages":[{"content":"x"}]}`)
	if out := prepare(t, tok, Chat, `{"model":"m","messages":[`+strings.Repeat("{},", maxRecords)+`{}]}`, 16); out.Reason != ReasonNoTokens {
		t.Errorf("reason %s of a body that is recorded in part", out.Reason)
	}
	if tok.calls != 0 {
		t.Errorf("%d calls", tok.calls)
	}
}

// The text of a prompt is what is hashed, not its spelling.
func TestSpellingDoesNotMatter(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 20)
	for name, pair := range map[string][2]string{
		"escapes": {
			`{"model":"m","messages":[{"role":"user","content":"` + long + `é/中😀\n"}]}`,
			`{"model":"m","messages":[{"role":"\u0075ser","content":"` + long + `\u00e9\/\u4E2d\ud83d\ude00\u000a"}]}`,
		},
		"order of keys and white space": {
			`{"model":"m","tools":[{"a":1}],"messages":[{"role":"user","content":"` + long + `"}]}`,
			` { "messages" : [ { "content" : "` + long + `" , "role" : "user" } ] , "x" : [ ] , "tools" : [ { "a" : 1 } ] , "model" : "m" } `,
		},
		"string or text part": {
			`{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"text":"` + long + `","type":"text"}]}]}`,
		},
		"bare string part": {
			`{"model":"m","messages":[{"role":"user","content":["` + long + `"]}]}`,
			`{"model":"m","messages":[{"role":"user","content":[{"text":"` + long + `","type":"text"}]}]}`,
		},
		"spelling inside tools": {
			`{"model":"m","tools":[{"d":"` + long + `é"}]}`,
			`{"model":"m","tools":[ {"\u0064" :"` + long + `\u00e9"} ]}`,
		},
		"earlier reasoning": {
			`{"model":"m","messages":[{"role":"assistant","content":[{"type":"text","text":"` + long + `"}]}]}`,
			`{"model":"m","messages":[{"role":"assistant","reasoning_content":"hm","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"` + long + `"}]}]}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []Kind{Chat, Messages} {
				a, b := prepare(t, nil, kind, pair[0]), prepare(t, nil, kind, pair[1])
				if len(a.Blocks[0].Hashes) < 3 || a.Tokens != b.Tokens || !slices.Equal(a.Blocks[0].Hashes, b.Blocks[0].Hashes) {
					t.Errorf("%v: %x (%d tokens) and %x (%d)", kind, a.Blocks[0].Hashes, a.Tokens, b.Blocks[0].Hashes, b.Tokens)
				}
			}
		})
	}
}

func TestDifferentPromptsDiffer(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 20)
	seen := map[kvindex.Hash]string{}
	for _, body := range []string{
		`"messages":[{"role":"user","content":"` + long + `"}]`,
		`"messages":[{"role":"system","content":"` + long + `"}]`,
		`"messages":[{"role":"user","content":""},{"role":"user","content":"` + long + `"}]`,
		`"tools":[{"a":1}],"messages":[{"role":"user","content":"` + long + `"}]`,
		`"tools":[{"a":2}],"messages":[{"role":"user","content":"` + long + `"}]`,
		`"messages":[{"role":"user","tool_calls":[{}],"content":""},{"role":"user","content":"` + long + `"}]`,
		`"messages":[{"role":"user","content":[{"type":"image","url":"u1"},"` + long + `"]}]`,
		`"messages":[{"role":"user","content":[{"type":"image","url":"u2"},"` + long + `"]}]`,
	} {
		out := prepare(t, nil, Chat, `{"model":"m",`+body+`}`)
		h := out.Blocks[0].Hashes[len(out.Blocks[0].Hashes)-1]
		if seen[h] != "" {
			t.Errorf("same hash for %s and %s", seen[h], body)
		}
		seen[h] = body
	}
}

func TestAGrowingConversationSharesAllFullBlocksOfItsTurns(t *testing.T) {
	for _, kind := range []Kind{Chat, Messages} {
		head := `{"model":"m","stream":true,"system":"` + strings.Repeat("s", 100) + `","tools":[{"name":"f"}],"messages":[`
		var body strings.Builder
		var last Prepared
		for turn := range 30 {
			if turn > 0 {
				body.WriteString(",")
			}
			fmt.Fprintf(&body, `{"role":"user","content":"turn %d %s"},{"role":"assistant","content":null,"tool_calls":[{"n":%d}]}`, turn, strings.Repeat("wörd\\n", turn*7), turn)
			now := prepare(t, nil, kind, head+body.String()+`]}`)
			if turn > 0 && (!samePrefix(last.Blocks, now.Blocks) || now.Tokens <= last.Tokens) {
				t.Fatalf("%v: turn %d does not extend turn %d", kind, turn, turn-1)
			}
			if n, want := len(now.Blocks[0].Hashes), now.Tokens/16; n != want {
				t.Errorf("%v: %d blocks for %d tokens", kind, n, now.Tokens)
			}
			last = now
		}
	}
}

// However the text is cut into pieces, the hashes are those of the whole.
func TestBlocksDoNotDependOnHowTheTextArrives(t *testing.T) {
	text := []byte(strings.Repeat("0123456789abcdefg", 2000))
	hash := func(size int, pieces ...int) []kvindex.Hash {
		var w blockWriter
		w.reset(size, 7, nil)
		rest := text
		for i := 0; len(rest) > 0; i++ {
			n := min(len(rest), pieces[i%len(pieces)])
			w.write(rest[:n])
			rest = rest[n:]
		}
		if w.total != len(text) {
			t.Errorf("total = %d", w.total)
		}
		return w.finish()
	}
	for _, size := range []int{1, 3, 64, 100, 4096, 5000} {
		want := hash(size, len(text))
		if len(want) != len(text)/size {
			t.Errorf("blocks of %d: %d of %d bytes", size, len(want), len(text))
		}
		for _, pieces := range [][]int{{1}, {63, 2}, {4096}, {4095, 4097}, {10000, 1}} {
			if got := hash(size, pieces...); !slices.Equal(got, want) {
				t.Errorf("blocks of %d in pieces of %v differ", size, pieces)
			}
		}
	}
}

// Replicas of the router share what they have seen, so the text that is hashed is
// a protocol between them.
func TestTheCanonicalText(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","tools":[ {"type":"function","function":{"name":"f\u00fc"}} ],"messages":[{"role":"system","content":"You are a helpful assistant."},` +
			`{"role":"user","content":["Tell me of \u00e9tudes \ud83c\udfb9",{"type":"text","text":"please"}]},{"content":null,"tool_calls":[ { "id" : 1 } ],"role":"assistant"}]}`: "\x1d[{\"type\":\"function\",\"function\":{\"name\":\"fü\"}}]" +
			"\x1esystem\x1fYou are a helpful assistant.\x1euser\x1fTell me of études 🎹\x1fplease\x1eassistant\x1f[{\"id\":1}]",
		`{"model":"m","system":"sys","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":" https://cdn/cat.png"}},` +
			`{"type":"thinking","thinking":"x"},{"type":"tool_result","content":"12"}]}]}`: "\x1esystem\x1fsys\x1euser\x1c~\x0f\x99\xcb\xd6\xb4[\x1f\x1f{\"type\":\"tool_result\",\"content\":\"12\"}",
	} {
		var out Prepared
		NewPreparer(Config{ApproxBlockTokens: 2, BytesPerToken: 1}, nil).Prepare(t.Context(), mustScan(t, Messages, body), nil, &out)
		if hashes := kvindex.HashBytes(nil, 0, []byte(want), 2); !slices.Equal(out.Blocks[0].Hashes, hashes) || out.Tokens != len(want) {
			t.Errorf("%s does not hash as %q: %d bytes, want %d", body, want, out.Tokens, len(want))
		}
	}
}

func TestAReusedPreparedAllocatesNothing(t *testing.T) {
	long := strings.Repeat(`some text \"quoted\"\n`, 500)
	bodies := [][]byte{
		[]byte(`{"model":"m","messages":[{"role":"user","content":"` + long + `"}]}`),
		[]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"` + long + `"},{"type":"image_url","image_url":{"url":"https:\/\/x"}}]}],"tools":[{"a":"b"}]}`),
	}
	p := NewPreparer(DefaultConfig(), nil)
	var r Request
	var out Prepared
	run := func() {
		for _, b := range bodies {
			if err := r.Scan(Chat, nil, b); err != nil {
				t.Fatal(err)
			}
			p.Prepare(t.Context(), &r, []int{16}, &out)
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestConfigFaultsAreAllReported(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{ApproxBlockTokens: -1, BytesPerToken: math.NaN()}.Validate()
	if err == nil || !strings.Contains(err.Error(), "block size") || !strings.Contains(err.Error(), "bytes per token") {
		t.Errorf("Validate = %v", err)
	}
}
