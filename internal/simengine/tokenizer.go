package simengine

import (
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Special token ids. The ids under firstWord belong to the chat template.
const (
	tokBOS uint32 = iota
	tokEndOfTurn
	tokSystem
	tokUser
	tokAssistant
	tokTool
	tokOther // any other role
	tokTools
	tokImage
	tokEmpty // what an empty prompt is made of: an engine needs one token

	firstWord uint32 = 128
	vocabSize uint32 = 128_000
)

// pieceBytes is the longest run of non-space bytes in one token.
const pieceBytes = 4

// appendTokens cuts text into pieces and appends one id per piece. A piece is an
// optional single space and up to four bytes of one word (more only to finish
// the last rune), or one other white-space byte. A cut depends on nothing after
// it but the next byte, so the tokens of a text's prefix that ends at a word
// boundary are a prefix of its tokens.
func appendTokens(dst []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		n := pieceLen(text[i:])
		dst = append(dst, pieceID(text[i:i+n]))
		i += n
	}
	return dst
}

// pieceID is the id of one piece.
func pieceID(piece string) uint32 {
	return firstWord + uint32(xxh3.HashString(piece)%uint64(vocabSize-firstWord))
}

// pieceLen returns the length of the piece at the start of s, which is not empty.
func pieceLen(s string) int {
	i := 0
	if s[0] == ' ' && len(s) > 1 && !isSpace(s[1]) {
		i = 1
	} else if isSpace(s[0]) {
		return 1
	}
	end := i
	for end < len(s) && !isSpace(s[end]) && end-i < pieceBytes {
		if s[end] < utf8.RuneSelf {
			end++
			continue
		}
		_, n := utf8.DecodeRuneInString(s[end:])
		end += n
	}
	return end
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

// syllables build the words that the engine generates: each is one piece, so a
// client that sends an answer back as a message hits the blocks it left behind.
const (
	consonants = "bdfgklmnprstvwyz"
	vowels     = "aeiou"
)

// wordPiece returns the k-th generated word of a stream of chance x.
func wordPiece(x uint64) string {
	b := [...]byte{
		' ', consonants[x&15], vowels[(x>>4)%5], consonants[(x>>12)&15], vowels[(x>>16)%5],
	}
	return string(b[:])
}

// splitmix is one step of the splitmix64 generator.
func splitmix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

// generate returns n pieces of text that depend on seed only. The first has no
// leading space, so that the pieces survive a client that trims answers.
func generate(seed uint64, n int) []string {
	out := make([]string, n)
	for i := range out {
		seed = splitmix(seed)
		out[i] = wordPiece(seed)
		if i == 0 {
			out[i] = out[i][1:]
		}
	}
	return out
}
