package forward

import (
	"encoding/hex"
	"errors"
	"fmt"

	"pointsman/fleet"
)

// Topology is the order in which the two legs of a pair run.
type Topology uint8

// The topologies of the known protocols (Infera infera/router/disagg_protocols).
const (
	// Concurrent legs run at once: the engines find each other by a room.
	Concurrent Topology = iota
	// Serial legs run one after the other, and the prefill leg is told who will
	// decode: another decode worker needs another prefill leg.
	Serial
	// Pull is Serial with a prefill leg that any decode worker can follow.
	Pull
)

// Connector knows what the engines of one prefill/decode protocol want to be
// told. It is pure: bodies in, bodies out. It is used by many requests at once.
//
// body is the client's request without what concerns the router only; it is not
// changed. Errors of Prefill mean that the pair's registrations lack something.
type Connector interface {
	// Topology returns the order of the legs.
	Topology() Topology
	// Prefill returns the body of the prefill leg.
	Prefill(p *Pair, body *Object) ([]byte, error)
	// Decode returns the body of the decode leg. answer is the prefill leg's
	// response, nil when the legs are concurrent; an answer without what the
	// decode worker needs is [ErrHandoff].
	Decode(p *Pair, body, answer *Object) ([]byte, error)
	// RequestID returns the X-Request-Id that both legs must carry, "" when the
	// client's own will do.
	RequestID(p *Pair) string
}

// Aborter is a [Connector] whose engines can be told to give a leg up, for those
// that do not see each closed connection (failover 4.4).
type Aborter interface {
	// Abort returns the path and the body of the POST that ends p's leg on w; a
	// nil body when w's engine knows none.
	Abort(p *Pair, w *fleet.Worker) (target string, body []byte)
}

// Errors of connectors.
var (
	// ErrHandoff says that a prefill answer does not hold what the decode leg
	// needs.
	ErrHandoff = errors.New("the prefill worker's answer lacks the handoff")
	// ErrPairParams says that a worker's registration lacks a parameter of its
	// protocol.
	ErrPairParams = errors.New("the worker registered without a parameter of its protocol")
)

// Pair is two workers and one attempt at a request. Every attempt has its own
// room: engines may still hold what a failed one left behind (Infera defect P23).
type Pair struct {
	Prefill, Decode         *fleet.Worker
	PrefillRank, DecodeRank int      // of rank-multiplexed workers; -1 for none
	Room                    uint64   // random, in [0, 2^63)
	Random                  [32]byte // for the identifiers of protocols that want a UUID
}

// newPair returns a pair with the room that random gives, moved to the prefill
// worker's rank: engines find the rank by room modulo size (Infera
// infera/router/disagg.py; defect P11).
func newPair(prefill, decode *fleet.Worker, prefillRank, decodeRank int, random [40]byte) *Pair {
	p := &Pair{Prefill: prefill, Decode: decode, PrefillRank: prefillRank, DecodeRank: decodeRank}
	copy(p.Random[:], random[8:])
	for _, b := range random[:8] {
		p.Room = p.Room<<8 | uint64(b)
	}
	p.Room &= 1<<63 - 1
	if rank, size := p.DPRank(), prefill.DPSize; rank >= 0 && rank < size {
		s := uint64(size) //nolint:gosec // not negative
		p.Room = p.Room - p.Room%s + uint64(rank)
		if p.Room >= 1<<63 {
			p.Room -= s
		}
	}
	return p
}

// DPRank returns the data-parallel rank that the prefill leg runs on: that of
// the leg, or else the one its worker is registered as; -1 for none.
func (p *Pair) DPRank() int {
	if p.PrefillRank >= 0 {
		return p.PrefillRank
	}
	return p.Prefill.DPRank
}

// UUID returns the n-th (0 or 1) random UUID of version 4 of the attempt
// (RFC 9562), with or without dashes.
func (p *Pair) UUID(n int, dashes bool) string {
	var raw [16]byte
	copy(raw[:], p.Random[16*n:])
	raw[6] = raw[6]&0x0f | 0x40
	raw[8] = raw[8]&0x3f | 0x80
	s := hex.EncodeToString(raw[:])
	if !dashes {
		return s
	}
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}

// Param returns the members of a worker's registered parameters.
// Its error wraps [ErrPairParams].
func Param(w *fleet.Worker) (*Object, error) {
	if len(w.Params) == 0 || string(w.Params) == "null" {
		return &Object{raw: []byte("{}"), end: 1}, nil
	}
	o, err := ParseObject(w.Params)
	if err != nil {
		return nil, fmt.Errorf("worker %q: params: %w: %w", w.ID, ErrPairParams, err)
	}
	return o, nil
}

// Missing is the error for a registration without the named parameter.
func Missing(w *fleet.Worker, name string) error {
	return fmt.Errorf("worker %q: %s: %w", w.ID, name, ErrPairParams)
}
