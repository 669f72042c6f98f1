// Package sglang is the prefill/decode protocol sglang-bootstrap: both legs carry
// the address of the prefill worker's bootstrap server and a room, and run at the
// same time (Infera infera/router/disagg_protocols).
package sglang

import (
	"fmt"
	"strconv"
	"strings"

	"pointsman/fleet"
	"pointsman/forward"
)

// Protocol is the name that workers register.
const Protocol = "sglang-bootstrap"

// Connector implements [forward.Connector]. The zero value is ready for use by
// any number of goroutines.
type Connector struct{}

var (
	_ forward.Connector = Connector{}
	_ forward.Aborter   = Connector{}
)

// Topology returns [forward.Concurrent].
func (Connector) Topology() forward.Topology { return forward.Concurrent }

// Prefill returns the client's body with the bootstrap address and the room.
func (Connector) Prefill(p *forward.Pair, body *forward.Object) ([]byte, error) {
	fields, err := bootstrap(p)
	if err != nil {
		return nil, err
	}
	return body.With(append(fields, named(p, p.Prefill)...)...), nil
}

// Decode returns the same body; an SGLang engine is also told which rank of the
// prefill worker has the KV cache.
func (Connector) Decode(p *forward.Pair, body, _ *forward.Object) ([]byte, error) {
	fields, err := bootstrap(p)
	if err != nil {
		return nil, err
	}
	if rank := p.DPRank(); rank >= 0 && p.Decode.Engine == fleet.SGLang {
		fields = append(fields, forward.Field{Name: "disagg_prefill_dp_rank", Value: forward.Number(rank)})
	}
	return body.With(append(fields, named(p, p.Decode)...)...), nil
}

// Abort returns SGLang's POST /abort_request. It ends every request whose rid
// begins with the one it names: those of all pairs have the same length.
func (Connector) Abort(p *forward.Pair, w *fleet.Worker) (target string, body []byte) {
	if w.Engine != fleet.SGLang {
		return "", nil
	}
	return "/abort_request", append(append([]byte(`{"rid":`), forward.Quote(rid(p))...), '}')
}

// rid is what an SGLang engine calls a leg: it reads no header for it.
func rid(p *forward.Pair) string { return p.UUID(0, false) }

// named gives a leg on w the name by which it can be aborted. A client's own rid
// could be the beginning of another request's.
func named(p *forward.Pair, w *fleet.Worker) []forward.Field {
	if w.Engine != fleet.SGLang {
		return nil
	}
	return []forward.Field{{Name: "rid", Value: forward.Quote(rid(p))}}
}

// RequestID returns "".
func (Connector) RequestID(*forward.Pair) string { return "" }

func bootstrap(p *forward.Pair) ([]forward.Field, error) {
	params, err := forward.Param(p.Prefill)
	if err != nil {
		return nil, err
	}
	addr, _ := params.String("bootstrap_addr")
	cut := strings.LastIndexByte(addr, ':')
	if cut <= 0 {
		return nil, forward.Missing(p.Prefill, "bootstrap_addr")
	}
	port, err := strconv.ParseUint(addr[cut+1:], 10, 16)
	if err != nil {
		return nil, fmt.Errorf("bootstrap_addr %q: %w", addr, forward.ErrPairParams)
	}
	return []forward.Field{
		{Name: "bootstrap_host", Value: forward.Quote(addr[:cut])},
		{Name: "bootstrap_port", Value: strconv.AppendUint(nil, port, 10)},
		{Name: "bootstrap_room", Value: strconv.AppendUint(nil, p.Room, 10)},
	}, nil
}
