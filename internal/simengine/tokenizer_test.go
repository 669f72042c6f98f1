package simengine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestTokenizerCutsWordsIntoPieces(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		pieces     []string
	}{
		{"a short word is one piece", "hey", []string{"hey"}},
		{"a space belongs to the word after it", "hey you", []string{"hey", " you"}},
		{"a long word is cut every four bytes", "prefixes", []string{"pref", "ixes"}},
		{"a cut word keeps its space", "a prefixes", []string{"a", " pref", "ixes"}},
		{"other white space stands alone", "a\n\tb", []string{"a", "\n", "\t", "b"}},
		{"a run of spaces leaves one for the word", "a   b", []string{"a", " ", " ", " b"}},
		{"a trailing space stands alone", "a ", []string{"a", " "}},
		{"a character is never cut", "aaaéb", []string{"aaaé", "b"}},
		{"bytes that are not UTF-8 are taken one by one", "\xff\xfe\xfd\xfc\xfb", []string{"\xff\xfe\xfd\xfc", "\xfb"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want []uint32
			for _, p := range tc.pieces {
				want = append(want, pieceID(p))
			}
			if got := appendTokens(nil, tc.text); !slices.Equal(got, want) {
				t.Errorf("appendTokens(%q) = %v, want the ids of %q", tc.text, got, tc.pieces)
			}
		})
	}
}

func TestGeneratedTextTokenizesToTheTokensItCameFrom(t *testing.T) {
	pieces := generate(42, 200)
	var want []uint32
	for _, p := range pieces {
		want = append(want, pieceID(p))
	}
	if got := appendTokens(nil, strings.Join(pieces, "")); !slices.Equal(got, want) {
		t.Errorf("the tokens of a generated text are not the generated tokens")
	}
	if again := generate(42, 200); !slices.Equal(again, pieces) {
		t.Errorf("the same seed gave another text")
	}
	if other := generate(43, 200); slices.Equal(other, pieces) {
		t.Errorf("another seed gave the same text")
	}
}

// FuzzTokenizerIsAppendOnly: what follows a word boundary changes no token
// before it, every byte is in exactly one piece, and ids are in range.
func FuzzTokenizerIsAppendOnly(f *testing.F) {
	f.Add("hello", "world")
	f.Add("é\xff", " ")
	f.Add("", "\n\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		head := appendTokens(nil, a)
		whole := appendTokens(nil, a+"\n"+b)
		if len(a) > 0 && a[len(a)-1] == ' ' {
			return // the space may join what follows
		}
		if !slices.Equal(head, whole[:len(head)]) {
			t.Fatalf("tokens of %q changed when text followed", a)
		}
		for _, id := range whole {
			if id < firstWord || id >= vocabSize {
				t.Fatalf("token id %d is outside the vocabulary", id)
			}
		}
		n := 0
		for rest := a; rest != ""; rest = rest[pieceLen(rest):] {
			n++
		}
		if n != len(head) {
			t.Fatalf("%d pieces, %d tokens", n, len(head))
		}
	})
}

func parseChat(t *testing.T, text string) *chat {
	t.Helper()
	var c chat
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func render(t *testing.T, text string) []uint32 {
	t.Helper()
	out, err := appendChat(nil, parseChat(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestChatTemplateGrowsAtItsEndOnly(t *testing.T) {
	first := render(t, `{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]}`)
	second := render(t, `{"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"hi"},
		{"role":"assistant","content":"hello there"},{"role":"user","content":"bye"}]}`)
	if !slices.Equal(first, second[:len(first)]) {
		t.Errorf("a further turn changed the tokens before it:\n%v\n%v", first, second)
	}
	if first[len(first)-1] != tokAssistant {
		t.Errorf("the prompt does not end by asking for an answer: %v", first)
	}
}

func TestChatTemplateVariants(t *testing.T) {
	user := `{"role":"user","content":"hi"}`
	plain := []uint32{tokUser, pieceID("hi"), tokEndOfTurn}
	for _, tc := range []struct {
		name, chat string
		want       []uint32
	}{
		{"asks for an answer", `{"messages":[` + user + `]}`, append(slices.Clone(plain), tokAssistant)},
		{"does not ask when told not to", `{"messages":[` + user + `],"add_generation_prompt":false}`, plain},
		{"leaves the last message open to be continued", `{"messages":[` + user + `],"continue_final_message":true}`, plain[:2]},
		{"text parts are text", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`, append(slices.Clone(plain), tokAssistant)},
		{"null content is none", `{"messages":[{"role":"assistant","content":null}]}`, []uint32{tokAssistant, tokEndOfTurn, tokAssistant}},
		{"an unknown role has a token too", `{"messages":[{"role":"critic","content":"hi"}]}`, []uint32{tokOther, pieceID("hi"), tokEndOfTurn, tokAssistant}},
		{"tools come first", `{"messages":[` + user + `],"tools":[]}`, append([]uint32{tokTools, pieceID("[]"), tokEndOfTurn}, append(slices.Clone(plain), tokAssistant)...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := render(t, tc.chat); !slices.Equal(got, tc.want) {
				t.Errorf("%s = %v, want %v", tc.chat, got, tc.want)
			}
		})
	}
}

func TestImagesTakeTokensOfTheirOwn(t *testing.T) {
	of := func(url string) []uint32 {
		return render(t, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+url+`"}}]}]}`)
	}
	a, again, b := of("http://x/a.png"), of("http://x/a.png"), of("http://x/b.png")
	switch {
	case len(a) != imageTokens+3:
		t.Errorf("an image took %d tokens, want %d", len(a)-3, imageTokens)
	case !slices.Equal(a, again):
		t.Errorf("the same image gave other tokens")
	case slices.Equal(a, b):
		t.Errorf("another image gave the same tokens")
	}
}

func TestChatTemplateRefusesWhatIsNoContent(t *testing.T) {
	for _, content := range []string{`7`, `{"a":1}`, `[1]`} {
		if _, err := appendChat(nil, parseChat(t, `{"messages":[{"role":"user","content":`+content+`}]}`)); err == nil {
			t.Errorf("content %s was accepted", content)
		}
	}
}
