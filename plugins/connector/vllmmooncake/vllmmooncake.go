// Package vllmmooncake is the prefill/decode protocol vllm-mooncake, of vLLM with
// MooncakeConnector or MooncakeStoreConnector: the legs run at the same time, and
// the decode engine asks the prefill engine's bootstrap server for a transfer
// (Infera infera/router/disagg_protocols).
package vllmmooncake

import (
	"fmt"

	"pointsman/forward"
)

// Protocol is the name that workers register.
const Protocol = "vllm-mooncake"

// Connector implements [forward.Connector]. The zero value is ready for use by
// any number of goroutines.
type Connector struct{}

var _ forward.Connector = Connector{}

// Topology returns [forward.Concurrent].
func (Connector) Topology() forward.Topology { return forward.Concurrent }

// Prefill returns a body that computes the prompt and one token.
func (Connector) Prefill(p *forward.Pair, body *forward.Object) ([]byte, error) {
	transfer := fmt.Appendf(nil, `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"%s"}`, transferID(p))
	return body.With(append(forward.Prefilling(body), forward.Field{Name: "kv_transfer_params", Value: transfer})...), nil
}

// Decode returns a body that fetches the prompt's KV cache and generates the rest.
func (Connector) Decode(p *forward.Pair, body, _ *forward.Object) ([]byte, error) {
	params, err := forward.Param(p.Prefill)
	if err != nil {
		return nil, err
	}
	addr, engine := params.Get("bootstrap_addr"), params.Get("engine_id")
	id, ok := params.String("engine_id")
	switch {
	case len(addr) == 0:
		return nil, forward.Missing(p.Prefill, "bootstrap_addr")
	case !ok:
		return nil, forward.Missing(p.Prefill, "engine_id")
	}
	if size := p.Prefill.DPSize; size > 1 {
		engine = forward.Quote(fmt.Sprintf("%s_dp%d", id, p.Room%uint64(size)))
	}
	transfer := fmt.Appendf(nil, `{"do_remote_decode":false,"do_remote_prefill":true,"remote_bootstrap_addr":%s,"remote_engine_id":%s,"transfer_id":"%s"}`,
		addr, engine, transferID(p))
	return body.With(append(forward.Remaining(body), forward.Field{Name: "kv_transfer_params", Value: transfer})...), nil
}

// RequestID returns "".
func (Connector) RequestID(*forward.Pair) string { return "" }

func transferID(p *forward.Pair) string { return fmt.Sprintf("xfer-%032x", p.Room) }
