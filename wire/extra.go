package wire

import (
	"bytes"
	"strconv"

	"github.com/zeebo/xxh3"

	"pointsman/kvindex"
)

const errExtraKeys decodeError = "extra_keys: more entries than blocks"

// markExtraKeys remembers where extra_keys begins: what its strings mean
// depends on properties that may come later.
func (d *decoder) markExtraKeys() error {
	c, err := d.r.peek()
	if err != nil {
		return err
	}
	if !isArray(c) {
		return errNotArray
	}
	d.f.extra = d.r.at
	return d.r.skip(1)
}

// extras makes blocks differ that hold the same tokens but must not be shared:
// by e.Extra for the adapter and the salt of a prompt's first event, and in the
// tokens of the blocks that have multimodal keys.
func (d *decoder) extras(e *kvindex.Event) error {
	if d.f.extra != 0 {
		if err := d.extraKeys(e); err != nil {
			return err
		}
	}
	if !e.HasParent {
		e.Extra = kvindex.Extra(d.adapter(), string(d.f.salt))
	}
	return nil
}

// adapter returns the LoRA adapter's name. An engine that gives only a number
// gets a name that no request can ask for, which keeps its blocks apart; vLLM
// numbers adapters from 1.
func (d *decoder) adapter() string {
	if len(d.f.loraName) == 0 && d.f.loraID != 0 {
		return "lora_id:" + strconv.FormatInt(d.f.loraID, 10)
	}
	return string(d.f.loraName)
}

// extraKeys mixes each block's multimodal keys into its first tokens. Those
// are placeholders, the same for every image, so without the keys two prompts
// with different images would count as one.
func (d *decoder) extraKeys(e *kvindex.Event) error {
	keys := reader{b: d.r.b, at: d.f.extra}
	entries, err := keys.arrayLen()
	if err != nil {
		return err
	}
	for i := range entries {
		sum, err := d.blockKeys(&keys, i == 0 && !e.HasParent)
		if err != nil {
			return err
		}
		if sum == 0 {
			continue
		}
		if i >= len(e.Tokens)/e.BlockSize {
			return errExtraKeys
		}
		block := e.Tokens[i*e.BlockSize:][:e.BlockSize]
		block[0] ^= uint32(sum) //nolint:gosec // the lower half
		if len(block) > 1 {
			block[1] ^= uint32(sum >> 32)
		}
	}
	return nil
}

// blockKeys folds the multimodal keys of the next block into one number, 0 for
// none. vLLM lists a block's keys as the adapter's name, then multimodal
// identifiers, then, on a prompt's first block, the cache salt; a salt is told
// from an identifier by not being a 64-digit hash.
func (d *decoder) blockKeys(keys *reader, head bool) (sum uint64, err error) {
	if keys.nilNext() {
		return 0, nil
	}
	n, err := keys.arrayLen()
	if err != nil {
		return 0, err
	}
	for i := range n {
		at := keys.at
		if c, err := keys.peek(); err != nil || !isText(c) {
			if err := keys.skip(1); err != nil {
				return 0, err
			}
		} else if word, err := keys.text(); err != nil {
			return 0, err
		} else if len(word) > 0 && bytes.Equal(word, d.f.loraName) {
			continue
		} else if head && i == n-1 && !isDigest(word) {
			d.f.salt = word
			continue
		}
		sum = xxh3.HashSeed(keys.b[at:keys.at], sum) | 1 // never 0, which says "none"
	}
	return sum, nil
}

func isDigest(word []byte) bool {
	if len(word) != 64 {
		return false
	}
	for _, c := range word {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
