package kvindex

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// stackTokens is the largest block that is hashed from the stack; larger ones,
// which no engine uses, go through a streaming hasher.
const stackTokens = 256

// HashTokens appends the chained hash of each full block of tokens to dst and
// returns it; a partial last block is dropped. It does not allocate when dst has
// room. size is in tokens; a size below 1 appends nothing.
//
// The chain is Infera's (hasher.py, hasher.rs): h = XXH3-64 with seed 0 over the
// little-endian 64-bit hash of the block before, or the given seed for the first
// block, followed by the block's tokens as little-endian 32-bit numbers. The seed
// is 0 or what [Extra] returns.
func HashTokens(dst []Hash, seed Hash, tokens []uint32, size int) []Hash {
	switch {
	case size < 1:
		return dst
	case size == 16:
		return hashTokens16(dst, seed, tokens)
	case size > stackTokens:
		return hashTokensLarge(dst, seed, tokens, size)
	}
	var buf [8 + 4*stackTokens]byte
	h := seed
	for ; len(tokens) >= size; tokens = tokens[size:] {
		binary.LittleEndian.PutUint64(buf[:], h)
		for i, t := range tokens[:size] {
			binary.LittleEndian.PutUint32(buf[8+4*i:], t)
		}
		h = xxh3.Hash(buf[:8+4*size])
		dst = append(dst, h)
	}
	return dst
}

// hashTokens16 is HashTokens for vLLM's default block size, without bounds
// checks in its inner loop.
func hashTokens16(dst []Hash, seed Hash, tokens []uint32) []Hash {
	var buf [8 + 4*16]byte
	h := seed
	for ; len(tokens) >= 16; tokens = tokens[16:] {
		binary.LittleEndian.PutUint64(buf[:], h)
		block := (*[16]uint32)(tokens)
		for i := 0; i < 16; i += 2 {
			binary.LittleEndian.PutUint64(buf[8+4*i:], uint64(block[i])|uint64(block[i+1])<<32)
		}
		h = xxh3.Hash(buf[:])
		dst = append(dst, h)
	}
	return dst
}

func hashTokensLarge(dst []Hash, seed Hash, tokens []uint32, size int) []Hash {
	var hasher xxh3.Hasher
	var buf [4 * stackTokens]byte
	h := seed
	for ; len(tokens) >= size; tokens = tokens[size:] {
		hasher.Reset()
		binary.LittleEndian.PutUint64(buf[:], h)
		_, _ = hasher.Write(buf[:8])
		for block := tokens[:size]; len(block) > 0; {
			n := min(len(block), stackTokens)
			for i, t := range block[:n] {
				binary.LittleEndian.PutUint32(buf[4*i:], t)
			}
			_, _ = hasher.Write(buf[:4*n])
			block = block[n:]
		}
		h = hasher.Sum64()
		dst = append(dst, h)
	}
	return dst
}

// bytesDomain starts the chains of HashBytes, so that text never matches tokens.
const bytesDomain = 0x706f696e74736d6e

// HashBytes appends the chained hash of each full block of size bytes of text to
// dst, as [HashTokens] does for tokens but in a domain of its own: for prompts
// whose tokens are not known.
func HashBytes(dst []Hash, seed Hash, text []byte, size int) []Hash {
	if size < 1 {
		return dst
	}
	var buf [8 + 1024]byte
	var hasher xxh3.Hasher
	h := pair(bytesDomain, seed)
	for ; len(text) >= size; text = text[size:] {
		binary.LittleEndian.PutUint64(buf[:], h)
		if size <= len(buf)-8 {
			copy(buf[8:], text[:size])
			h = xxh3.Hash(buf[:8+size])
		} else {
			hasher.Reset()
			_, _ = hasher.Write(buf[:8])
			_, _ = hasher.Write(text[:size])
			h = hasher.Sum64()
		}
		dst = append(dst, h)
	}
	return dst
}

func pair(a, b uint64) Hash {
	var buf [16]byte
	binary.LittleEndian.PutUint64(buf[:], a)
	binary.LittleEndian.PutUint64(buf[8:], b)
	return xxh3.Hash(buf[:])
}

// Extra folds the LoRA adapter and the cache salt of a prompt into a seed for
// its first block: prompts that must not share cache get different seeds. It
// returns 0 when both are empty, so that plain prompts hash as Infera's do, and
// never 0 otherwise. The two are hashed one by one: ("ab", "c") differs from
// ("a", "bc").
func Extra(lora, salt string) uint64 {
	if lora == "" && salt == "" {
		return 0
	}
	if h := pair(xxh3.HashString(lora), xxh3.HashString(salt)); h != 0 {
		return h
	}
	return 1
}
