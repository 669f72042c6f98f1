package traffic

import "math/rand/v2"

// Words are made of two of these, so one word is four letters and a space: one
// token for most tokenizers, and for the simulated engine exactly one.
const (
	consonants = "bcdfghjklmnpqrstvwxz"
	vowels     = "aeiouy"
)

// appendWords appends n words that only r decides, each led by a space. A text
// cut after any word stays a prefix of it in tokens too.
func appendWords(dst []byte, r *rand.Rand, n int) []byte {
	for range n {
		x := r.Uint32()
		dst = append(dst, ' ',
			consonants[x%20], vowels[(x>>8)%6],
			consonants[(x>>16)%20], vowels[(x>>24)%6])
	}
	return dst
}

// words returns n words decided by a seed and a stream number: equal numbers
// give equal text whatever was asked before.
func words(seed, stream uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, stream)) //nolint:gosec // text to send, not a secret
	return string(appendWords(make([]byte, 0, 5*n), r, n))
}
