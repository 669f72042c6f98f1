package tokens

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// parityResult is what TestParity writes for tools/parity_tokens.py.
type parityResult struct {
	Texts      int `json:"texts"`
	Bytes      int `json:"bytes"`
	Tokens     int `json:"tokens"`
	Mismatches int `json:"mismatches"`
}

// parityRecord is one text and the ids that the reference gives.
type parityRecord struct {
	specials Specials
	text     []byte
	ids      []uint32
}

func readRecords(t *testing.T, path string) []parityRecord {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []parityRecord
	for len(raw) > 0 {
		n, k := int(binary.LittleEndian.Uint32(raw[1:])), int(binary.LittleEndian.Uint32(raw[5:]))
		r := parityRecord{specials: raw[0] != 0, text: raw[9 : 9+n], ids: make([]uint32, k)}
		raw = raw[9+n:]
		for i := range r.ids {
			r.ids[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		raw = raw[4*k:]
		out = append(out, r)
	}
	return out
}

// TestParity compares with the reference's ids, which tools/parity_tokens.py has
// recorded from a real model's tokenizer. Without it, TestGolden has a small
// version of the same comparison.
func TestParity(t *testing.T) {
	dir, records, result := os.Getenv("PARITY_TOKENIZER"), os.Getenv("PARITY_RECORDS"), os.Getenv("PARITY_RESULT")
	if dir == "" {
		t.Skip("run tools/parity_tokens.py")
	}
	tok, err := loadBare(dir)
	if err != nil {
		t.Fatal(err)
	}
	res := compareRecords(t, tok, readRecords(t, records))
	raw, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(result, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// loadBare loads without tokenizer_config.json where there is a tokenizer.json: the
// reference does not know what the engine makes of it.
func loadBare(dir string) (*Tokenizer, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if errors.Is(err, os.ErrNotExist) {
		return Load(dir)
	}
	if err != nil {
		return nil, err
	}
	return LoadBytes(raw)
}

// compareRecords encodes each text with a cold and a warm word cache, and through
// a prefix cache as it grows.
func compareRecords(t *testing.T, tok *Tokenizer, records []parityRecord) parityResult {
	t.Helper()
	var res parityResult
	prefixes := NewPrefixCache(8 << 20)
	prefixes.step = 1 // cut at every place there is
	var got []uint32
	differ := func(r *parityRecord, how string, got []uint32) {
		res.Mismatches++
		if res.Mismatches > 20 {
			return
		}
		at := 0
		for at < min(len(got), len(r.ids)) && got[at] == r.ids[at] {
			at++
		}
		text := r.text
		if len(text) > 200 {
			text = text[:200]
		}
		t.Errorf("%s: %q: %d ids, want %d, first difference at %d: %v, want %v", how, text, len(got), len(r.ids), at,
			got[at:min(len(got), at+6)], r.ids[at:min(len(r.ids), at+6)])
	}
	for i := range records {
		r := &records[i]
		res.Texts++
		res.Bytes += len(r.text)
		res.Tokens += len(r.ids)
		if i%64 == 0 {
			tok.DropWordCaches()
		}
		for _, how := range []string{"cold", "warm"} {
			if got, _ = tok.Encode(got[:0], r.text, r.specials); !slices.Equal(got, r.ids) {
				differ(r, how, got)
				break
			}
		}
		for _, part := range []int{1, 2, 2} { // half of it, all of it, all of it again
			text := r.text[:len(r.text)*part/2]
			if got, _ = prefixes.Encode(tok, got[:0], text, r.specials); part == 2 && !slices.Equal(got, r.ids) {
				differ(r, "incremental", got)
				break
			}
		}
	}
	return res
}
