package kvindex

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
)

func upTo(n uint32) []uint32 {
	var tokens []uint32
	for t := uint32(1); t <= n; t++ {
		tokens = append(tokens, t)
	}
	return tokens
}

func TestTokenHashesAreInferas(t *testing.T) {
	// Computed by running Infera's hasher.py.
	for name, c := range map[string]struct {
		tokens []uint32
		size   int
		want   []Hash
	}{
		"a partial block is dropped": {upTo(10), 4, []Hash{0x341839abbe30be0b, 0x37b6de0623bdb5ca}},
		"three blocks of 16":         {upTo(48), 16, []Hash{0x73d57c846a7f6b4e, 0xdcb64a9b2a68aec4, 0x06c3e6be56d5609f}},
		"a block of one token":       {[]uint32{7}, 1, []Hash{0xeef32d3f0cdb0fe8}},
		"the largest token id":       {[]uint32{0, 4294967295}, 2, []Hash{0x57294f5d3fd58d2d}},
		"a chat of a toy tokenizer":  {[]uint32{105, 3, 4, 103, 5, 6, 7, 8, 104}, 4, []Hash{0x94f3354104eb75dc, 0x46863cd6964d8344}},
		"a completion of the same":   {[]uint32{3, 4, 5, 6, 7, 8, 9, 10, 11}, 4, []Hash{0x0991176c47d7ce6c, 0xdb0b4c64f35fdd0a}},
		"fewer tokens than a block":  {upTo(3), 4, nil},
		"no tokens":                  {nil, 4, nil},
		"no block size":              {upTo(10), 0, nil},
		"a negative block size":      {upTo(10), -1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := HashTokens(nil, 0, c.tokens, c.size); !slices.Equal(got, c.want) {
				t.Errorf("HashTokens = %x, want %x", got, c.want)
			}
		})
	}
}

func TestAllBlockSizesHashTheSameBytes(t *testing.T) {
	tokens := upTo(3000)
	for i := range tokens {
		tokens[i] *= 2654435761
	}
	for _, size := range []int{1, 2, 7, 15, 16, 17, 64, 255, 256, 257, 300, 512, 1024} {
		h, want := Hash(77), []Hash(nil)
		for rest := tokens; len(rest) >= size; rest = rest[size:] {
			buf := binary.LittleEndian.AppendUint64(nil, h)
			for _, tok := range rest[:size] {
				buf = binary.LittleEndian.AppendUint32(buf, tok)
			}
			h = xxh3.Hash(buf)
			want = append(want, h)
		}
		if got := HashTokens(nil, 77, tokens, size); !slices.Equal(got, want) {
			t.Errorf("size %d: %d hashes differ from those of the plain bytes", size, len(got))
		}
	}
}

func TestHashTokensAppends(t *testing.T) {
	got := HashTokens([]Hash{1, 2}, 0, upTo(4), 4)
	if want := []Hash{1, 2, 0x341839abbe30be0b}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func TestTextAndTokensNeverMatch(t *testing.T) {
	tokens := upTo(16)
	var text []byte
	for _, tok := range tokens {
		text = binary.LittleEndian.AppendUint32(text, tok)
	}
	a, b := HashTokens(nil, 0, tokens, 4), HashBytes(nil, 0, text, 16)
	if len(a) != len(b) {
		t.Fatalf("%d and %d blocks", len(a), len(b))
	}
	for i := range a {
		if a[i] == b[i] {
			t.Errorf("block %d has one hash as text and as tokens", i)
		}
	}
}

func TestHashBytesChains(t *testing.T) {
	long := []byte(strings.Repeat("the quick brown fox ", 400))
	for _, size := range []int{1, 64, 1024, 1025, 3000} {
		hs := HashBytes(nil, 5, long, size)
		if want := len(long) / size; len(hs) != want {
			t.Fatalf("size %d: %d blocks, want %d", size, len(hs), want)
		}
		changed := slices.Clone(long)
		changed[0]++
		for i, h := range HashBytes(nil, 5, changed, size) {
			if h == hs[i] {
				t.Errorf("size %d: block %d does not depend on the first byte", size, i)
			}
		}
		if other := HashBytes(nil, 6, long, size); other[0] == hs[0] {
			t.Errorf("size %d: the seed does not count", size)
		}
	}
	if got := HashBytes(nil, 0, long, 0); got != nil {
		t.Errorf("size 0 gives %d blocks, want none", len(got))
	}
}

func TestExtraTellsAdaptersAndSaltsApart(t *testing.T) {
	if got := Extra("", ""); got != 0 {
		t.Errorf("Extra of nothing is %x, want 0: plain prompts must hash as Infera's", got)
	}
	seen := map[uint64][2]string{}
	for _, c := range [][2]string{{"a", ""}, {"", "a"}, {"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"", "abc"}} {
		e := Extra(c[0], c[1])
		if e == 0 || e != Extra(c[0], c[1]) {
			t.Errorf("Extra(%q) is 0 or changes", c)
		}
		if other, dup := seen[e]; dup {
			t.Errorf("Extra is the same for %q and %q", c, other)
		}
		seen[e] = c
	}
}

func TestHashingDoesNotAllocate(t *testing.T) {
	tokens, text := upTo(2048), make([]byte, 8192)
	dst := make([]Hash, 0, 2048)
	for name, f := range map[string]func(){
		"blocks of 16":     func() { HashTokens(dst, 0, tokens, 16) },
		"blocks of 64":     func() { HashTokens(dst, 0, tokens, 64) },
		"blocks of 512":    func() { HashTokens(dst, 0, tokens, 512) },
		"text":             func() { HashBytes(dst, 0, text, 64) },
		"long text blocks": func() { HashBytes(dst, 0, text, 2048) },
		"extra":            func() { Extra("adapter", "salt") },
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// FuzzHashTokens compares the hashes of any tokens and size with those of the
// bytes that the contract names.
func FuzzHashTokens(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, uint16(2), uint64(0))
	f.Add(make([]byte, 4*600), uint16(300), uint64(9))
	f.Fuzz(func(t *testing.T, raw []byte, size uint16, seed uint64) {
		var tokens []uint32
		for rest := raw; len(rest) >= 4; rest = rest[4:] {
			tokens = append(tokens, binary.LittleEndian.Uint32(rest))
		}
		got := HashTokens(nil, seed, tokens, int(size))
		if size == 0 {
			if len(got) != 0 {
				t.Fatalf("%d blocks of size 0", len(got))
			}
			return
		}
		if want := len(tokens) / int(size); len(got) != want {
			t.Fatalf("%d blocks, want %d", len(got), want)
		}
		h := seed
		for i, g := range got {
			block := raw[4*i*int(size) : 4*(i+1)*int(size)]
			h = xxh3.Hash(append(binary.LittleEndian.AppendUint64(nil, h), block...))
			if g != h {
				t.Fatalf("block %d: %x, want %x", i, g, h)
			}
		}
	})
}
