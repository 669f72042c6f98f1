package wire

import (
	"bytes"
	"strconv"

	"github.com/zeebo/xxh3"

	"pointsman/kvindex"
)

const errExtraKeys decodeError = "extra_keys: one entry per block expected"

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

// extras sets e's Extra and splits e where a block has multimodal keys.
func (d *decoder) extras(e *kvindex.Event) error {
	if d.f.extra == 0 && len(d.f.loraName) == 0 && d.f.loraID == 0 && len(d.f.salt) == 0 {
		return nil
	}
	var keys reader
	entries := 0
	if d.f.extra != 0 {
		var err error
		keys = reader{b: d.r.b, at: d.f.extra}
		if entries, err = keys.arrayLen(); err != nil {
			return err
		}
		if entries > len(e.Hashes) {
			return errExtraKeys
		}
	}
	first, err := d.blockKeys(&keys, entries > 0, !e.HasParent)
	if err != nil {
		return err
	}
	if !e.HasParent {
		e.Extra = kvindex.Extra(d.adapter(), string(d.f.salt))
	}
	e.Extra = foldKeys(e.Extra, first)
	return d.split(&keys, entries)
}

// adapter returns the LoRA adapter's name. An engine that gives only a number
// gets a name that no request can ask for, which keeps its blocks apart.
func (d *decoder) adapter() string {
	if len(d.f.loraName) == 0 && d.f.loraID != 0 {
		return "lora_id:" + strconv.FormatInt(d.f.loraID, 10)
	}
	return string(d.f.loraName)
}

func foldKeys(extra, keys uint64) uint64 {
	if extra == 0 || keys == 0 {
		return extra | keys
	}
	return xxh3.HashStringSeed("extra_keys", extra^keys)
}

// blockKeys folds the multimodal keys of the next block into one number, 0 for
// none. vLLM lists a block's keys as the adapter's name, then multimodal
// identifiers, then, on a prompt's first block, the cache salt; a salt is told
// from an identifier by not being a 64-digit hash.
func (d *decoder) blockKeys(keys *reader, more, head bool) (uint64, error) {
	if !more || keys.nilNext() {
		return 0, nil
	}
	n, err := keys.arrayLen()
	if err != nil {
		return 0, err
	}
	var sum uint64
	for i := range n {
		at := keys.at
		c, err := keys.peek()
		if err != nil {
			return 0, err
		}
		if isText(c) {
			word, err := keys.text()
			if err != nil {
				return 0, err
			}
			switch {
			case bytes.Equal(word, d.f.loraName):
				continue
			case head && i == n-1 && (len(d.f.salt) == 0 || bytes.Equal(word, d.f.salt)) && !isDigest(word):
				d.f.salt = word
				continue
			}
		} else if err := keys.skip(1); err != nil {
			return 0, err
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

// split cuts the last event of the batch before each further block that has
// keys of its own.
func (d *decoder) split(keys *reader, entries int) error {
	cur := len(d.batch.Events) - 1
	begin := 0 // first block of the event at cur, counted in the whole event
	for i := 1; i < entries; i++ {
		sum, err := d.blockKeys(keys, true, false)
		if err != nil {
			return err
		}
		if sum == 0 {
			continue
		}
		next := d.slot()
		e := &d.batch.Events[cur]
		cut := i - begin
		if cut*e.BlockSize > len(e.Tokens) {
			return errExtraKeys
		}
		next.Kind, next.Tier, next.BlockSize, next.Extra = e.Kind, e.Tier, e.BlockSize, sum
		next.HasParent, next.Parent = true, e.Hashes[cut-1]
		next.Hashes = append(next.Hashes, e.Hashes[cut:]...)
		next.Tokens = append(next.Tokens, e.Tokens[cut*e.BlockSize:]...)
		e.Hashes, e.Tokens = e.Hashes[:cut], e.Tokens[:cut*e.BlockSize]
		cur, begin = cur+1, i
	}
	return nil
}
