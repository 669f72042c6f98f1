package simengine

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"pointsman/kvindex"
	"pointsman/wire"
)

// relayView is what a relay has seen of one rank's cache: the router's hash of
// each block by the engine's (infera.md §4.4). Its methods may be called from
// any goroutine.
type relayView struct {
	mu     sync.Mutex
	blocks map[uint64]kvindex.Hash
	dirty  bool
	batch  kvindex.Batch
	chain  []kvindex.Hash
}

func newRelayView() *relayView { return &relayView{blocks: map[uint64]kvindex.Hash{}} }

// apply follows one message. One that cannot be read changes nothing.
func (v *relayView) apply(payload []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if wire.DecodeBatch(payload, &v.batch) != nil {
		return
	}
	for i := range v.batch.Events {
		e := &v.batch.Events[i]
		switch e.Kind {
		case kvindex.Stored:
			v.stored(e)
		case kvindex.Removed:
			for _, h := range e.Hashes {
				delete(v.blocks, h)
			}
		case kvindex.Cleared:
			clear(v.blocks)
		}
		v.dirty = true
	}
}

func (v *relayView) stored(e *kvindex.Event) {
	seed := e.Extra
	if e.HasParent {
		parent, ok := v.blocks[e.Parent]
		if !ok {
			return
		}
		seed = parent
	}
	v.chain = kvindex.HashTokens(v.chain[:0], seed, e.Tokens, e.BlockSize)
	if len(v.chain) != len(e.Hashes) {
		return
	}
	for i, h := range v.chain {
		v.blocks[e.Hashes[i]] = h
	}
}

// value returns the bucket's value, a sorted array of hashes in MessagePack, and
// whether it may differ from the last one.
func (v *relayView) value() (value []byte, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	changed, v.dirty = v.dirty, false
	hashes := slices.Compact(slices.Sorted(maps.Values(v.blocks)))
	switch n := len(hashes); {
	case n < 16:
		value = append(value, 0x90|byte(n))
	case n < 1<<16:
		value = binary.BigEndian.AppendUint16(append(value, 0xdc), uint16(n))
	default:
		value = binary.BigEndian.AppendUint32(append(value, 0xdd), uint32(n)) //nolint:gosec // far fewer blocks than that
	}
	for _, h := range hashes {
		value = appendMsgpackUint(value, h)
	}
	return value, changed
}

// appendMsgpackUint appends h in the shortest form, as msgpack's Python library
// does.
func appendMsgpackUint(b []byte, h uint64) []byte {
	switch {
	case h < 1<<7:
		return append(b, byte(h))
	case h < 1<<8:
		return append(b, 0xcc, byte(h))
	case h < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(h))
	case h < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(h))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), h)
}
