package tokens

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"unicode/utf8"
)

// Specials says whether what the post-processor adds (BOS, EOS) is wanted.
type Specials = bool

// Whether to add special tokens. Engines add them to a plain completion's prompt
// and not to a rendered chat template.
const (
	WithoutSpecials Specials = false
	WithSpecials    Specials = true
)

// Tokenizer is one model's tokenizer. Make it by [Load]; it may be used by any
// number of goroutines.
type Tokenizer struct {
	tables *unicodeTables
	model  *bpe
	steps  []normStep
	pre    *preTokenizer
	added  []AddedToken
	raw    *matcher // of added tokens in raw text
	normal *matcher // of added tokens in normalized text
	around around
	size   int

	chunked  bool // long text is cut first, see chunks
	bos, eos string
	digest   string
	seed     uint64 // of its entries in a PrefixCache
	cut      cutRules

	mu   sync.Mutex
	free []*encoder // guarded by mu; each with its word cache
	made int        // guarded by mu: encoders with a cache
	most int        // of them
	lent sync.Pool  // encoders beyond most, without a lasting cache
}

// Encode appends the ids of text to dst. It returns dst as it was and
// [ErrInvalidText] when text is not valid UTF-8. It allocates nothing once dst and
// the tokenizer's scratch space are large enough, and keeps nothing of text.
func (t *Tokenizer) Encode(dst []uint32, text []byte, specials Specials) ([]uint32, error) {
	if !utf8.Valid(text) {
		return dst, ErrInvalidText
	}
	return t.encode(Stop{}, dst, text, specials)
}

// encode is Encode of valid text.
func (t *Tokenizer) encode(stop Stop, dst []uint32, text []byte, specials Specials) ([]uint32, error) {
	had := len(dst)
	e := t.borrow()
	defer t.giveBack(e)
	e.stop = stop
	if specials {
		dst = append(dst, t.around.before...)
	}
	dst = t.whole(e, dst, text)
	if e.stopped {
		return dst[:had], ErrStopped
	}
	if specials {
		dst = append(dst, t.around.after...)
	}
	return dst, nil
}

// Count returns how many ids [Tokenizer.Encode] gives for text.
func (t *Tokenizer) Count(text []byte, specials Specials) (int, error) {
	if !utf8.Valid(text) {
		return 0, ErrInvalidText
	}
	e := t.borrow()
	e.count = t.whole(e, e.count[:0], text)
	n := len(e.count)
	t.giveBack(e)
	if specials {
		n += len(t.around.before) + len(t.around.after)
	}
	return n, nil
}

// whole appends the ids of a whole text.
func (t *Tokenizer) whole(e *encoder, dst []uint32, text []byte) []uint32 {
	if !t.chunked {
		return t.stretch(e, dst, text, false)
	}
	t.chunks(text, func(piece []byte) { dst = t.stretch(e, dst, piece, false) })
	return dst
}

// stretch appends the ids of text, which starts the whole text or, continued, goes
// on from a position where the whole may be cut.
func (t *Tokenizer) stretch(e *encoder, dst []uint32, text []byte, continued bool) []uint32 {
	if t.raw == nil {
		return t.between(e, dst, text, !continued, continued)
	}
	e.raw = t.raw.split(t.tables, e.raw[:0], text)
	for _, m := range e.raw {
		if m.id != noID {
			dst = append(dst, m.id)
			continue
		}
		first := m.from == 0
		dst = t.between(e, dst, text[m.from:m.to], first && !continued, first && continued)
	}
	return dst
}

// between appends the ids of text without added tokens of the raw kind.
func (t *Tokenizer) between(e *encoder, dst []uint32, text []byte, atStart, continued bool) []uint32 {
	text = e.normalize(t.tables, t.steps, text, continued)
	if t.normal == nil {
		return e.words(t.pre, dst, text, atStart, continued)
	}
	e.match = t.normal.split(t.tables, e.match[:0], text)
	for _, m := range e.match {
		if m.id != noID {
			dst = append(dst, m.id)
			continue
		}
		first := m.from == 0
		dst = e.words(t.pre, dst, text[m.from:m.to], first && atStart, first && continued)
	}
	return dst
}

// borrow lends an encoder that nobody else uses. Beyond one per processor the
// word caches are not kept, so that memory is bounded.
func (t *Tokenizer) borrow() *encoder {
	t.mu.Lock()
	if n := len(t.free); n > 0 {
		e := t.free[n-1]
		t.free = t.free[:n-1]
		t.mu.Unlock()
		return e
	}
	lasting := t.made < t.most
	if lasting {
		t.made++
	}
	t.mu.Unlock()
	if !lasting {
		if e, ok := t.lent.Get().(*encoder); ok {
			return e
		}
	}
	return &encoder{m: t.model, cache: newWordCache(), lasting: lasting}
}

// keepScratch is how much scratch space an encoder may keep between calls, in
// bytes; one that met a huge prompt starts anew.
const keepScratch = 8 << 20

func (t *Tokenizer) giveBack(e *encoder) {
	e.stopper = stopper{}
	if e.scratch() > keepScratch {
		*e = encoder{m: e.m, cache: e.cache, lasting: e.lasting}
	}
	if !e.lasting {
		t.lent.Put(e)
		return
	}
	t.mu.Lock()
	t.free = append(t.free, e)
	t.mu.Unlock()
}

// VocabSize returns the number of ids, one more than the largest.
func (t *Tokenizer) VocabSize() int { return t.size }

// BOS returns the text of the token that starts a text, as tokenizer_config.json
// names it; empty when it does not.
func (t *Tokenizer) BOS() string { return t.bos }

// EOS returns the text of the token that ends a text; like [Tokenizer.BOS].
func (t *Tokenizer) EOS() string { return t.eos }

// Added returns the added tokens. The caller must not change them.
func (t *Tokenizer) Added() []AddedToken { return t.added }

// Digest returns the SHA-256 of the tokenizer file, in hexadecimal.
func (t *Tokenizer) Digest() string { return t.digest }

// Memory returns how many bytes the tokenizer holds, with all its word caches
// and without the Unicode tables, which all tokenizers share.
func (t *Tokenizer) Memory() int {
	n := t.model.memory() + t.raw.memory() + t.normal.memory() + t.most*cacheMemory
	for i := range t.added {
		n += 48 + len(t.added[i].Content)
	}
	return n
}

func (t *Tokenizer) setIdentity(raw []byte) {
	sum := sha256.Sum256(raw)
	t.digest = hex.EncodeToString(sum[:])
	t.seed = newSeed()
}

// AppendText appends what the token of an id stands for to dst, and nothing for an
// id that the model does not have. A part of a character comes as it is, so that
// need not be UTF-8; a model's mark for a space stays.
func (t *Tokenizer) AppendText(dst []byte, id uint32) []byte {
	for i := range t.added {
		if t.added[i].ID == id {
			return append(dst, t.added[i].Content...)
		}
	}
	if _, fallback := t.model.textLen(id); fallback {
		for b, known := range t.model.byteID {
			if known == id {
				return append(dst, byte(b))
			}
		}
	}
	return append(dst, t.model.bytes(id)...)
}
