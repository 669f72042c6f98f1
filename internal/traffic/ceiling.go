package traffic

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// Ceiling is one cache that every request shares and that forgets nothing: no
// routing over any number of workers can hit more of the same requests. It
// counts like an engine: whole blocks, and never the whole prompt, because one
// token must be computed to get an answer. Answers are not put into it: the
// plans' histories hold answers of their own.
type Ceiling struct {
	size   int
	blocks map[uint64]struct{}
	prompt int
	hit    int
}

// NewCeiling returns an empty cache of blocks of size tokens. With engines of
// several block sizes the smallest makes the highest ceiling.
func NewCeiling(size int) *Ceiling {
	return &Ceiling{size: size, blocks: make(map[uint64]struct{})}
}

// Add takes the next prompt and returns how many of its tokens were there.
func (c *Ceiling) Add(tokens []uint32) int {
	usable := (len(tokens) - 1) / c.size
	buf := make([]byte, 8+4*c.size)
	var chain uint64
	hit, following := 0, true
	for i := range len(tokens) / c.size {
		binary.LittleEndian.PutUint64(buf, chain)
		for k, token := range tokens[i*c.size : (i+1)*c.size] {
			binary.LittleEndian.PutUint32(buf[8+4*k:], token)
		}
		chain = xxh3.Hash(buf)
		_, there := c.blocks[chain]
		c.blocks[chain] = struct{}{}
		if following = following && there && i < usable; following {
			hit += c.size
		}
	}
	c.prompt += len(tokens)
	c.hit += hit
	return hit
}

// Ratio returns the share of all prompt tokens that were there; 0 before the
// first prompt.
func (c *Ceiling) Ratio() float64 {
	if c.prompt == 0 {
		return 0
	}
	return float64(c.hit) / float64(c.prompt)
}
