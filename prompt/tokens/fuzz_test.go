package tokens

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"unicode/utf8"
)

// FuzzEncode checks what holds of any text: cold, warm and grown give the same
// ids, and byte-level ids spell the text.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "the fox", "e\u0301 中文。\n", "<|im_start|>user\nHi<|im_end|>", "a  \n b 'S 123", "\xff"} {
		f.Add([]byte(s), uint8(3))
	}
	names := []string{"cl100k", "o200k", "deepseek", "gpt2", "llama2", "gemma", "qwen2", "metaspace_first"}
	toks := make([]*Tokenizer, len(names))
	for i, name := range names {
		toks[i] = loadGolden(f, name)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut uint8) {
		for i, tok := range toks {
			prefixes := NewPrefixCache(1)
			prefixes.step = 1 + int(cut)
			tok.DropWordCaches()
			cold, err := tok.Encode(nil, text, WithoutSpecials)
			if !utf8.Valid(text) {
				if !errors.Is(err, ErrInvalidText) {
					t.Fatalf("%s: %v", names[i], err)
				}
				continue
			}
			warm, errWarm := tok.Encode(nil, text, WithoutSpecials)
			grown, errGrown := prefixes.Encode(tok, nil, text, WithoutSpecials)
			if all := errors.Join(err, errWarm, errGrown); all != nil {
				t.Fatal(all)
			}
			if !slices.Equal(cold, warm) || !slices.Equal(cold, grown) {
				t.Fatalf("%s: cold %v, warm %v, grown %v", names[i], cold, warm, grown)
			}
			if len(tok.steps) == 0 && tok.pre.byteLevel && !bytes.Equal(spell(tok, cold), text) {
				t.Fatalf("%s: the tokens spell %q", names[i], spell(tok, cold))
			}
		}
	})
}

// spell puts the bytes of byte-level tokens together.
func spell(tok *Tokenizer, ids []uint32) []byte {
	var out []byte
	for _, id := range ids {
		at := slices.IndexFunc(tok.added, func(a AddedToken) bool { return a.ID == id })
		if at >= 0 {
			out = append(out, tok.added[at].Content...)
			continue
		}
		out = append(out, tok.model.bytes(id)...)
	}
	return out
}

// FuzzLoad checks that no file does more than fail with a typed error.
func FuzzLoad(f *testing.F) {
	f.Add(marshal(f, tinyFile()))
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":[["a","b"]]},"normalizer":{"type":"NFC"}}`))
	f.Add([]byte(`{"model":{"vocab":{"a":0},"merges":[],"unk_token":"a","fuse_unk":true},"pre_tokenizer":{"type":"Metaspace","replacement":"▁"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tok, err := LoadBytes(raw)
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrTooLarge) {
				t.Errorf("untyped error %v", err)
			}
			return
		}
		if _, err := tok.Encode(nil, []byte("ab ba\u0301 中 "), WithSpecials); err != nil {
			t.Error(err)
		}
	})
}
