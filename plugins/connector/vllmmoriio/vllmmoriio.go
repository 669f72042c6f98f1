// Package vllmmoriio is the prefill/decode protocols of vLLM with MoRIIOConnector:
// vllm-mori-write, where the legs run at the same time and the prefill engine
// writes into the decode engine's memory, and vllm-mori-read, where the decode
// engine reads when the prefill leg has answered. Both find their partner's ports
// in the request ID (Infera infera/router/disagg_protocols).
package vllmmoriio

import (
	"fmt"
	"net"

	"pointsman/fleet"
	"pointsman/forward"
)

// The names that workers register.
const (
	WriteProtocol = "vllm-mori-write"
	ReadProtocol  = "vllm-mori-read"
)

// Write implements [forward.Connector] for vllm-mori-write. The zero value is
// ready for use by any number of goroutines.
type Write struct{ names }

// Read implements [forward.Connector] for vllm-mori-read. The zero value is ready
// for use by any number of goroutines.
type Read struct{ names }

var (
	_ forward.Connector = Write{}
	_ forward.Connector = Read{}
)

// Topology returns [forward.Concurrent].
func (Write) Topology() forward.Topology { return forward.Concurrent }

// Topology returns [forward.Serial]: the request ID names the decode worker.
func (Read) Topology() forward.Topology { return forward.Serial }

// Prefill returns a body that computes the prompt and one token.
func (Write) Prefill(p *forward.Pair, body *forward.Object) ([]byte, error) {
	return prefill(p, body, fmt.Sprintf("tx-%032x", p.Room))
}

// Prefill returns a body that computes the prompt and one token.
func (Read) Prefill(p *forward.Pair, body *forward.Object) ([]byte, error) {
	return prefill(p, body, "tx-"+p.UUID(0, true))
}

func prefill(p *forward.Pair, body *forward.Object, id string) ([]byte, error) {
	for _, w := range [...]*fleet.Worker{p.Prefill, p.Decode} {
		if _, err := portsOf(w); err != nil {
			return nil, err
		}
	}
	transfer := fmt.Appendf(nil, `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"%s"`, id)
	transfer = append(sizes(transfer, p.Decode), '}')
	return body.With(append(forward.Prefilling(body), forward.Field{Name: "kv_transfer_params", Value: transfer})...), nil
}

// Decode returns a body that waits for the KV cache and generates the rest.
func (Write) Decode(p *forward.Pair, body, _ *forward.Object) ([]byte, error) {
	transfer := fmt.Appendf(nil, `{"do_remote_decode":false,"do_remote_prefill":true,"remote_engine_id":null,"remote_block_ids":null,"transfer_id":"tx-%032x"`, p.Room)
	return decode(p, body, transfer), nil
}

// Decode returns a body that fetches the KV cache from where answer says.
func (Read) Decode(p *forward.Pair, body, answer *forward.Object) ([]byte, error) {
	given, ok := answer.Object("kv_transfer_params")
	if !ok || !given.Has("transfer_id") || !given.Has("remote_engine_id") || !given.Has("remote_block_ids") {
		return nil, forward.ErrHandoff
	}
	transfer := fmt.Appendf(nil, `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":%s,"remote_engine_id":%s,"remote_block_ids":%s`,
		given.Get("transfer_id"), given.Get("remote_engine_id"), given.Get("remote_block_ids"))
	return decode(p, body, transfer), nil
}

func decode(p *forward.Pair, body *forward.Object, transfer []byte) []byte {
	transfer = append(sizes(transfer, p.Prefill), '}')
	return body.With(append(forward.Remaining(body), forward.Field{Name: "kv_transfer_params", Value: transfer})...)
}

// names makes the request ID that both engines take their partner's address from.
type names struct{}

// RequestID returns the forged request ID of Infera's router.
func (names) RequestID(p *forward.Pair) string {
	from, _ := portsOf(p.Prefill) // prefill has seen that they are there
	to, _ := portsOf(p.Decode)
	return fmt.Sprintf("___prefill_addr_host:%s,handshake:%d,notify:%d___decode_addr_host:%s,handshake:%d,notify:%d_%s",
		host(p.Prefill), from.handshake, from.notify, host(p.Decode), to.handshake, to.notify, p.UUID(1, false))
}

// host is the worker's host as in its URL.
func host(w *fleet.Worker) string {
	if ip := net.ParseIP(w.Host); ip != nil && ip.To4() == nil {
		return "[" + w.Host + "]"
	}
	return w.Host
}

type ports struct{ handshake, notify, tp int }

func portsOf(w *fleet.Worker) (ports, error) {
	out := ports{tp: 1}
	params, err := forward.Param(w)
	if err != nil {
		return out, err
	}
	extra, ok := params.Object("kv_connector_extra_config")
	if !ok {
		return out, forward.Missing(w, "kv_connector_extra_config")
	}
	if out.handshake, ok = extra.Int("handshake_port"); !ok {
		return out, forward.Missing(w, "handshake_port")
	}
	if out.notify, ok = extra.Int("notify_port"); !ok {
		return out, forward.Missing(w, "notify_port")
	}
	if tp, ok := extra.Int("tp_size"); ok && tp > 0 {
		out.tp = tp
	}
	return out, nil
}

// sizes appends the parallel sizes of the leg's partner.
func sizes(dst []byte, partner *fleet.Worker) []byte {
	to, _ := portsOf(partner)
	return fmt.Appendf(dst, `,"remote_dp_size":%d,"tp_size":%d,"remote_tp_size":%d`, max(1, partner.DPSize), to.tp, to.tp)
}
