package wire

import (
	"errors"
	"fmt"
	"math"

	"pointsman/kvindex"
)

// ErrBatch means that a message is not a batch of KV events, or breaks off, so
// that none of it was used.
var ErrBatch = errors.New("not a batch of KV events")

// DecodeBatch reads one message of an engine's KV event publisher into b, whose
// memory it uses again; b holds no reference to payload afterwards. Seq and
// HasSeq are the transport's to set and stay as they are.
//
// The message is the array [ts, events, rank] in MessagePack; the rank may be
// absent and further elements are passed over. Each event is told apart by its
// own content: a map (vLLM, ATOM) or an array (SGLang), as Infera's Rust router
// does (rust/router/src/kv_event.rs), whatever engine the worker registered.
//
// An event that cannot be used (a type that is not known, a field of the wrong
// kind, a token out of range) is passed over alone and counted in b.Skipped.
// Events of a cache group other than full attention are left out and not
// counted: that is how hybrid models are meant to be read (§4.4). Where the
// message cannot be followed to its end the error is [ErrBatch] and b is empty.
//
// A prompt's LoRA adapter and cache salt become the Extra of its first event,
// from where the chain of hashes carries them on. Multimodal keys, which belong
// to single blocks, are mixed into those blocks' tokens.
func DecodeBatch(payload []byte, b *kvindex.Batch) error {
	b.Rank, b.At, b.Skipped, b.Events = -1, 0, 0, b.Events[:0]
	d := decoder{r: reader{b: payload}, batch: b}
	if err := d.message(); err != nil {
		b.Skipped, b.Events = 0, b.Events[:0]
		return fmt.Errorf("%w: %w at byte %d of %d", ErrBatch, err, d.r.at, len(payload))
	}
	return nil
}

type decoder struct {
	r     reader
	batch *kvindex.Batch
	f     fields
}

const errTrailing decodeError = "bytes after the batch"

func (d *decoder) message() error {
	n, err := d.r.arrayLen()
	if err != nil {
		return err
	}
	if n < 2 {
		return errShort
	}
	if d.batch.At, err = d.r.number(); err != nil {
		return err
	}
	if err := d.events(); err != nil {
		return err
	}
	if n > 2 {
		if err := d.rank(); err != nil {
			return err
		}
		if err := d.r.skip(n - 3); err != nil {
			return err
		}
	}
	if d.r.left() > 0 {
		return errTrailing
	}
	return nil
}

// rank reads attn_dp_rank, of which anything but a small number says nothing.
func (d *decoder) rank() error {
	if d.r.nilNext() {
		return nil
	}
	at := d.r.at
	bits, negative, err := d.r.integer()
	if err != nil {
		d.r.at = at
		return d.r.skip(1)
	}
	if !negative && bits <= math.MaxInt32 {
		d.batch.Rank = int(bits)
	}
	return nil
}

func (d *decoder) events() error {
	n, err := d.r.arrayLen()
	if err != nil {
		return err
	}
	for range n {
		at, held := d.r.at, len(d.batch.Events)
		if err := d.event(); err == nil {
			continue
		}
		d.batch.Events = d.batch.Events[:held]
		d.batch.Skipped++
		d.r.at = at
		if err := d.r.skip(1); err != nil {
			return err
		}
	}
	return nil
}

// slot returns the next event of the batch with the memory it had before.
func (d *decoder) slot() *kvindex.Event {
	events := d.batch.Events
	if len(events) < cap(events) {
		events = events[:len(events)+1]
	} else {
		events = append(events, kvindex.Event{})
	}
	d.batch.Events = events
	e := &events[len(events)-1]
	*e = kvindex.Event{Hashes: e.Hashes[:0], Tokens: e.Tokens[:0]}
	return e
}
