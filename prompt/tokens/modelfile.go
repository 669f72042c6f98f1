//nolint:gosec // ids, ranks and offsets are below 2^32, which loading checks
package tokens

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// modelBuilder makes a bpe of a file's "model".
type modelBuilder struct {
	m        *bpe
	alphabet [324]int16        // byteLevel: byte of a code point, or -1
	foreign  map[string]uint32 // byteLevel: tokens with a code point outside the alphabet; no text has them
	texts    []byte            // of all tokens, in the file's order
	seen     []span            // by id
	inMerge  []bool            // by id
	buf      []byte
}

type span struct{ from, n uint32 }

// modelOptions are the members of "model" beside vocab and merges.
type modelOptions struct {
	Type                    *string  `json:"type"`
	Dropout                 *float64 `json:"dropout"`
	UnkToken                *string  `json:"unk_token"`
	ContinuingSubwordPrefix *string  `json:"continuing_subword_prefix"`
	EndOfWordSuffix         *string  `json:"end_of_word_suffix"`
	FuseUnk                 bool     `json:"fuse_unk"`
	ByteFallback            bool     `json:"byte_fallback"`
	IgnoreMerges            bool     `json:"ignore_merges"`
}

// members returns the bytes of each member of an object.
func members(raw []byte) (map[string][]byte, error) {
	s := jsonScan{b: raw}
	out := map[string][]byte{}
	err := s.object(func(key string) error {
		v, err := s.value()
		if err != nil {
			return err
		}
		if _, twice := out[key]; twice {
			return s.fault("key twice")
		}
		out[key] = v
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.blank()
	if s.i != len(raw) {
		return nil, s.fault("something after the object")
	}
	return out, nil
}

func isNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

func readModel(raw []byte, byteLevel bool) (*modelBuilder, error) {
	parts, err := members(raw)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	opts, err := readModelOptions(parts)
	if err != nil {
		return nil, err
	}
	b := &modelBuilder{
		m:       &bpe{byteLevel: byteLevel, ignoreMerges: opts.IgnoreMerges, fuseUnknown: opts.FuseUnk, unknown: noID},
		foreign: map[string]uint32{},
	}
	if byteLevel {
		if opts.ByteFallback {
			return nil, unsupported("byte_fallback", "together with byte-level text")
		}
		b.setAlphabet()
	}
	if err := b.readVocab(parts["vocab"]); err != nil {
		return nil, fmt.Errorf("vocab: %w", err)
	}
	if err := b.readMerges(parts["merges"]); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	if err := b.setSymbols(opts); err != nil {
		return nil, err
	}
	b.finish()
	return b, nil
}

func readModelOptions(parts map[string][]byte) (modelOptions, error) {
	rest := make(map[string]json.RawMessage, len(parts))
	for key, value := range parts {
		if key != "vocab" && key != "merges" {
			rest[key] = value
		}
	}
	var opts modelOptions
	raw, err := json.Marshal(rest)
	if err == nil {
		err = json.Unmarshal(raw, &opts)
	}
	if err != nil {
		return opts, malformed("model: %v", err)
	}
	if opts.Type != nil && *opts.Type != "BPE" {
		why := "no exact implementation here"
		if *opts.Type == "Unigram" {
			why = "its scores are summed in floating point, and the reference breaks ties by the order of its own lattice"
		}
		return opts, unsupported("model", "type %q: %s", *opts.Type, why)
	}
	if isNull(parts["merges"]) {
		return opts, unsupported("model", "without merges")
	}
	switch {
	case opts.Dropout != nil && *opts.Dropout != 0:
		return opts, unsupported("dropout", "%v makes tokens random", *opts.Dropout)
	case opts.ContinuingSubwordPrefix != nil && *opts.ContinuingSubwordPrefix != "":
		return opts, unsupported("continuing_subword_prefix", "%q", *opts.ContinuingSubwordPrefix)
	case opts.EndOfWordSuffix != nil && *opts.EndOfWordSuffix != "":
		return opts, unsupported("end_of_word_suffix", "%q", *opts.EndOfWordSuffix)
	}
	return opts, nil
}

// setAlphabet maps the code points that stand for bytes (GPT-2's bytes_to_unicode:
// the printable ones of Latin-1 stand for themselves, the others for U+0100 on).
func (b *modelBuilder) setAlphabet() {
	for i := range b.alphabet {
		b.alphabet[i] = -1
	}
	next := 256
	for c := range 256 {
		if c >= '!' && c <= '~' || c >= 0xa1 && c != 0xad {
			b.alphabet[c] = int16(c)
			continue
		}
		b.alphabet[next] = int16(c)
		next++
	}
}

// text appends the bytes that the token's name stands for; false when no text has
// them.
func (b *modelBuilder) text(dst, name []byte) ([]byte, bool) {
	if !b.m.byteLevel {
		return append(dst, name...), len(name) > 0
	}
	for i := 0; i < len(name); {
		r, n := rune(name[i]), 1
		if r >= utf8.RuneSelf {
			r, n = runeAt(name, i)
		}
		if int(r) >= len(b.alphabet) || b.alphabet[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(b.alphabet[r]))
		i += n
	}
	return dst, len(name) > 0
}

func (b *modelBuilder) readVocab(raw []byte) error {
	s := jsonScan{b: raw}
	err := s.objectBytes(func() error {
		var err error
		if b.buf, err = s.str(b.buf[:0]); err != nil {
			return err
		}
		if !s.take(':') {
			return s.fault("no colon after a key")
		}
		id, err := s.uint(maxIDs)
		if err != nil {
			return err
		}
		return b.addToken(b.buf, id)
	})
	if err != nil {
		return err
	}
	return b.layOut()
}

func (b *modelBuilder) addToken(name []byte, id uint32) error {
	b.m.count++
	for int(id) >= len(b.seen) {
		b.seen = append(b.seen, span{n: noID})
	}
	if b.seen[id].n != noID {
		return unsupported("vocab", "id %d has two tokens", id)
	}
	from := len(b.texts)
	text, ok := b.text(b.texts, name)
	if !ok {
		b.texts = b.texts[:from]
		if _, twice := b.foreign[string(name)]; twice {
			return malformed("token %q twice", name)
		}
		b.foreign[string(name)] = id
		b.seen[id] = span{}
		return nil
	}
	b.texts = text
	b.seen[id] = span{uint32(from), uint32(len(text) - from)}
	return nil
}

// layOut orders the tokens' bytes by id and builds the hash table.
func (b *modelBuilder) layOut() error {
	v := &b.m.vocab
	v.arena = make([]byte, 0, len(b.texts))
	v.start = make([]uint32, 1, len(b.seen)+1)
	v.slots = make([]uint64, 1<<bits.Len(uint(b.m.count+b.m.count/2+1)))
	for id, at := range b.seen {
		text := []byte(nil)
		if at.n != noID {
			text = b.texts[at.from : at.from+at.n]
		}
		v.arena = append(v.arena, text...)
		v.start = append(v.start, uint32(len(v.arena)))
		b.m.longest = max(b.m.longest, len(text))
		if len(text) > 0 && !v.insert(text, uint32(id)) {
			return malformed("token %q twice", text)
		}
	}
	b.texts, b.seen = nil, nil
	return nil
}

// tokenID returns the id that the model gives to the text of an added token.
func (b *modelBuilder) tokenID(content string) uint32 {
	text, ok := b.text(nil, []byte(content))
	if ok {
		return b.m.id(text)
	}
	if id, known := b.foreign[content]; known {
		return id
	}
	return noID
}

func (b *modelBuilder) readMerges(raw []byte) error {
	s := jsonScan{b: raw}
	b.m.pairs = newPairTable(bytes.Count(raw, []byte{','}) / 2)
	b.inMerge = make([]bool, len(b.m.start))
	var left, right []byte
	err := s.array(func() error {
		var ok bool
		var err error
		if left, right, ok, err = readMerge(&s, left[:0], right[:0]); err != nil || !ok {
			return err
		}
		return b.addMerge(left, right)
	})
	if err != nil {
		return err
	}
	b.m.pairs.fit()
	return nil
}

// readMerge reads "a b" or ["a","b"]; ok is false for a version line.
func readMerge(s *jsonScan, left, right []byte) (l, r []byte, ok bool, err error) {
	s.blank()
	if s.i < len(s.b) && s.b[s.i] == '[' {
		n := 0
		err = s.array(func() error {
			var bad error
			switch n++; n {
			case 1:
				left, bad = s.str(left)
			case 2:
				right, bad = s.str(right)
			default:
				bad = s.fault("merge of more than two")
			}
			return bad
		})
		if err == nil && n != 2 {
			err = s.fault("merge of less than two")
		}
		return left, right, true, err
	}
	if left, err = s.str(left); err != nil {
		return left, right, false, err
	}
	if bytes.HasPrefix(left, []byte("#version")) {
		return left, right, false, nil
	}
	at := bytes.IndexByte(left, ' ')
	if at < 0 || bytes.IndexByte(left[at+1:], ' ') >= 0 {
		return left, right, false, s.fault("merge is not two tokens")
	}
	right = append(right, left[at+1:]...)
	return left[:at], right, true, nil
}

func (b *modelBuilder) addMerge(left, right []byte) error {
	p := &b.m.pairs
	rank := uint32(len(p.made))
	if rank >= maxRanks {
		return fmt.Errorf("%w: more than %d merges", ErrTooLarge, maxRanks)
	}
	buf, okLeft := b.text(b.buf[:0], left)
	n := len(buf)
	buf, okRight := b.text(buf, right)
	b.buf = buf
	if !okLeft || !okRight {
		return b.foreignMerge(left, right)
	}
	l, r, both := b.m.id(buf[:n]), b.m.id(buf[n:]), b.m.id(buf)
	if l == noID || r == noID || both == noID {
		return malformed("merge of %q and %q: not in the vocabulary", left, right)
	}
	p.made = append(p.made, both)
	b.inMerge[l], b.inMerge[r], b.inMerge[both] = true, true, true
	if 2*len(p.made) > len(p.slots) {
		p.grow()
	}
	p.set(l, r, rank)
	return nil
}

// foreignMerge takes the rank of a merge that no text can reach.
func (b *modelBuilder) foreignMerge(left, right []byte) error {
	for _, name := range []string{string(left), string(right), string(left) + string(right)} {
		if b.tokenID(name) == noID {
			return malformed("merge of %q and %q: not in the vocabulary", left, right)
		}
	}
	b.m.pairs.made = append(b.m.pairs.made, noID)
	return nil
}

func (p *pairTable) grow() {
	old := p.slots
	p.slots = make([]uint64, 2*len(old))
	for _, s := range old {
		if s != 0 {
			key := s >> rankBits
			p.set(uint32(key>>idBits), uint32(key&(maxIDs-1)), uint32(s&(1<<rankBits-1))-1)
		}
	}
}

// fit gives spare memory back.
func (p *pairTable) fit() {
	p.made = append(make([]uint32, 0, len(p.made)), p.made...)
}
