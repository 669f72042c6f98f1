package wire

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/zeebo/xxh3"
)

// everyFormat holds one value of each MessagePack format, by its name in the
// specification, in the shortest bytes that show it.
func everyFormat() map[string][]byte {
	return map[string][]byte{
		"nil": {0xc0}, "false": {0xc2}, "true": {0xc3},
		"positive fixint": {0x7f}, "negative fixint": {0xe0},
		"uint 8": {0xcc, 1}, "uint 16": {0xcd, 1, 2}, "uint 32": {0xce, 1, 2, 3, 4}, "uint 64": {0xcf, 1, 2, 3, 4, 5, 6, 7, 8},
		"int 8": {0xd0, 1}, "int 16": {0xd1, 1, 2}, "int 32": {0xd2, 1, 2, 3, 4}, "int 64": {0xd3, 1, 2, 3, 4, 5, 6, 7, 8},
		"float 32": {0xca, 1, 2, 3, 4}, "float 64": {0xcb, 1, 2, 3, 4, 5, 6, 7, 8},
		"fixstr": {0xa2, 'a', 'b'}, "empty fixstr": {0xa0},
		"str 8": {0xd9, 2, 'a', 'b'}, "str 16": {0xda, 0, 2, 'a', 'b'}, "str 32": {0xdb, 0, 0, 0, 2, 'a', 'b'},
		"bin 8": {0xc4, 2, 'a', 'b'}, "bin 16": {0xc5, 0, 2, 'a', 'b'}, "bin 32": {0xc6, 0, 0, 0, 2, 'a', 'b'},
		"fixarray": {0x92, 1, 2}, "array 16": {0xdc, 0, 2, 1, 2}, "array 32": {0xdd, 0, 0, 0, 2, 1, 2},
		"fixmap": {0x81, 1, 2}, "map 16": {0xde, 0, 1, 1, 2}, "map 32": {0xdf, 0, 0, 0, 1, 1, 2},
		"fixext 1": {0xd4, 9, 1}, "fixext 2": {0xd5, 9, 1, 2}, "fixext 4": {0xd6, 9, 1, 2, 3, 4},
		"fixext 8":  append([]byte{0xd7, 9}, make([]byte, 8)...),
		"fixext 16": append([]byte{0xd8, 9}, make([]byte, 16)...),
		"ext 8":     {0xc7, 3, 9, 1, 2, 3}, "ext 16": {0xc8, 0, 3, 9, 1, 2, 3}, "ext 32": {0xc9, 0, 0, 0, 3, 9, 1, 2, 3},
		"nested": {0x92, 0x81, 0xa1, 'k', 0x91, 0xc0, 0x90},
	}
}

func TestSkipPassesExactlyOneValue(t *testing.T) {
	for name, value := range everyFormat() {
		r := reader{b: append(append([]byte{}, value...), 0xc3)}
		if err := r.skip(1); err != nil || r.at != len(value) {
			t.Errorf("%s: at %d of %d, %v", name, r.at, len(value), err)
		}
		if err := r.skip(1); err != nil || r.left() != 0 {
			t.Errorf("%s: what follows is not reached: %v", name, err)
		}
		for cut := range value {
			r := reader{b: value[:cut]}
			if err := r.skip(1); !errors.Is(err, errShort) {
				t.Errorf("%s cut at %d: %v", name, cut, err)
			}
		}
	}
}

// Each reading method takes its own formats and refuses all others without
// reading beyond the value.
func TestReadersTakeOnlyTheirKind(t *testing.T) {
	for name, value := range everyFormat() {
		kind := strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(name, "empty "), "fix"), " ")
		is := func(kinds ...string) bool {
			for _, k := range kinds {
				if strings.Contains(kind, k) && !strings.Contains(kind, "float") && kind != "nested" {
					return true
				}
			}
			return false
		}
		for _, c := range []struct {
			what string
			read func(r *reader) error
			ok   bool
		}{
			{"text", func(r *reader) error { _, err := r.text(); return err }, is("str", "bin")},
			{"integer", func(r *reader) error { _, _, err := r.integer(); return err }, is("int")},
			{"number", func(r *reader) error { _, err := r.number(); return err }, is("int") || strings.Contains(name, "float")},
			{"hash", func(r *reader) error { _, err := r.hash(); return err }, is("int", "str", "bin")},
			{"array", func(r *reader) error { _, err := r.arrayLen(); return err }, is("array") || name == "nested"},
		} {
			r := reader{b: value}
			err := c.read(&r)
			if c.ok != (err == nil) {
				t.Errorf("%s of %s: %v", c.what, name, err)
			}
			if r.at > len(value) {
				t.Errorf("%s of %s read beyond its end", c.what, name)
			}
		}
	}
}

var boundaries = []int64{
	0, 1, 31, 32, 127, 128, 255, 256, 32767, 32768, 65535, 65536, math.MaxInt32, math.MaxInt32 + 1,
	math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64,
	-1, -31, -32, -33, -127, -128, -129, -32768, -32769, math.MinInt32, math.MinInt32 - 1, math.MinInt64,
}

// Our encoders write what an independent decoder reads, in the shortest form,
// and our reader reads what an independent encoder writes.
func TestIntegersAtTheirBoundaries(t *testing.T) {
	for _, v := range boundaries {
		bits := uint64(v)
		signed := appendSigned(nil, bits)
		var got int64
		if err := msgpack.Unmarshal(signed, &got); err != nil || got != v {
			t.Errorf("%d as signed reads %d, %v", v, got, err)
		}
		unsigned := appendUint(nil, bits)
		var gotU uint64
		if err := msgpack.Unmarshal(unsigned, &gotU); err != nil || gotU != bits {
			t.Errorf("%d as unsigned reads %d, %v", bits, gotU, err)
		}
		compact := new(bytes.Buffer)
		enc := msgpack.NewEncoder(compact)
		enc.UseCompactInts(true)
		if err := enc.EncodeInt(v); err != nil || !bytes.Equal(compact.Bytes(), signed) {
			t.Errorf("%d as signed is %x, want %x", v, signed, compact.Bytes())
		}
		for _, raw := range [][]byte{signed, unsigned, pack(t, v), pack(t, bits)} {
			r := reader{b: raw}
			if got, _, err := r.integer(); err != nil || got != bits || r.left() != 0 {
				t.Errorf("%x reads %d, %v, want %d", raw, got, err, bits)
			}
		}
		r := reader{b: pack(t, v)}
		if f, err := r.number(); err != nil || f != float64(v) {
			t.Errorf("%d as a number is %v, %v", v, f, err)
		}
	}
}

func TestTextsAndArraysAtTheirBoundaries(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536} {
		want := strings.Repeat("x", n)
		raw := appendText(nil, want)
		var got string
		if err := msgpack.Unmarshal(raw, &got); err != nil || got != want {
			t.Errorf("a text of %d bytes reads %d bytes, %v", n, len(got), err)
		}
		if !bytes.Equal(raw, pack(t, want)) {
			t.Errorf("a text of %d bytes is not in its shortest form", n)
		}
		for _, raw := range [][]byte{raw, pack(t, []byte(want))} {
			r := reader{b: raw}
			if text, err := r.text(); err != nil || string(text) != want || r.left() != 0 {
				t.Errorf("a text of %d bytes: %d bytes, %v", n, len(text), err)
			}
		}

		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = uint32(i * 7919)
		}
		raw = appendTokens(nil, tokens)
		var back []uint32
		if err := msgpack.Unmarshal(raw, &back); err != nil || len(back) != n || n > 0 && back[n-1] != tokens[n-1] {
			t.Errorf("%d tokens read %d, %v", n, len(back), err)
		}
		for _, raw := range [][]byte{raw, pack(t, tokens)} {
			r := reader{b: raw}
			if got, err := r.tokens(nil); err != nil || !equalTokens(got, widen(tokens)) || r.left() != 0 {
				t.Errorf("%d tokens: %d, %v", n, len(got), err)
			}
		}
	}
}

func widen(tokens []uint32) []int64 {
	out := make([]int64, len(tokens))
	for i, t := range tokens {
		out[i] = int64(t)
	}
	return out
}

// The fast loop over tokens hands over to the slow one near the end of the
// message and at unusual formats; every split must read the same.
func TestTokensAtEveryDistanceFromTheEnd(t *testing.T) {
	formats := []struct {
		raw  []byte
		want int64
	}{
		{[]byte{0x05}, 5},
		{[]byte{0xcc, 200}, 200},
		{[]byte{0xcd, 0xea, 0x60}, 60000},
		{[]byte{0xce, 0xff, 0xff, 0xff, 0xff}, math.MaxUint32},
		{[]byte{0xcf, 0, 0, 0, 0, 0, 0, 0, 9}, 9},
		{[]byte{0xd2, 0, 0, 0, 7}, 7},
	}
	for _, first := range formats {
		for _, last := range formats {
			for pad := range 7 {
				raw := appendArrayLen(nil, 2+pad)
				want := []int64{first.want}
				raw = append(raw, first.raw...)
				for range pad {
					raw, want = append(raw, 0x01), append(want, 1)
				}
				raw, want = append(raw, last.raw...), append(want, last.want)
				r := reader{b: raw}
				if got, err := r.tokens(nil); err != nil || !equalTokens(got, want) || r.left() != 0 {
					t.Fatalf("%x reads %v, %v, want %v", raw, got, err, want)
				}
				for cut := 1; cut < len(raw); cut++ {
					r := reader{b: raw[:cut]}
					if _, err := r.tokens(nil); err == nil {
						t.Fatalf("%x cut at %d reads as whole", raw, cut)
					}
				}
			}
		}
	}
}

func TestHashesOfEveryKind(t *testing.T) {
	digest := []byte("0123456789abcdef0123456789abcdef")
	raw := pack(t, list{uint64(math.MaxUint64), -1, 7, digest, "text"})
	r := reader{b: raw}
	got, err := r.hashes(nil)
	want := []uint64{math.MaxUint64, math.MaxUint64, 7, xxh3.Hash(digest), xxh3.HashString("text")}
	if err != nil || len(got) != len(want) {
		t.Fatalf("got %v, %v", got, err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("hash %d is %d, want %d", i, got[i], want[i])
		}
	}
}
