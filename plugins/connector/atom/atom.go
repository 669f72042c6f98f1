// Package atom is the prefill/decode protocol atom-mooncake: the prefill leg is
// told where the decode worker is, and its answer holds what the decode leg needs
// (Infera infera/router/disagg_protocols).
package atom

import (
	"fmt"
	"strconv"

	"pointsman/fleet"
	"pointsman/forward"
)

// Protocol is the name that workers register.
const Protocol = "atom-mooncake"

// defaultHandshake is ATOM's own port.
const defaultHandshake = 6301

// Connector implements [forward.Connector]. The zero value is ready for use by
// any number of goroutines.
type Connector struct{}

var _ forward.Connector = Connector{}

// Topology returns [forward.Serial]: the prefill leg names the decode worker.
func (Connector) Topology() forward.Topology { return forward.Serial }

// Prefill returns a body that computes the prompt and one token.
func (Connector) Prefill(p *forward.Pair, body *forward.Object) ([]byte, error) {
	to, err := engineOf(p.Decode)
	if err != nil {
		return nil, err
	}
	transfer := fmt.Appendf(nil, `{"remote_dp_size":%d,"remote_tp_size":%d,"do_remote_decode":true,"do_remote_prefill":false,`+
		`"remote_handshake_port":%d,"remote_engine_id":null,"remote_block_ids":null,"remote_host":%s,"remote_port":%d}`,
		to.dp, to.tp, to.handshake, to.host, to.port)
	return body.With(append(forward.Prefilling(body), forward.Field{Name: "kv_transfer_params", Value: transfer})...), nil
}

// Decode returns the client's body with the whole handoff of answer and the
// prefill worker's sizes. ATOM counts the prefill leg's token itself, so that the
// limits of the output stay.
func (Connector) Decode(p *forward.Pair, body, answer *forward.Object) ([]byte, error) {
	from, err := engineOf(p.Prefill)
	if err != nil {
		return nil, err
	}
	given, ok := answer.Object("kv_transfer_params")
	if !ok || !given.Has("transfer_id") {
		return nil, forward.ErrHandoff
	}
	fields := []forward.Field{
		{Name: "remote_dp_size", Value: forward.Number(from.dp)},
		{Name: "remote_tp_size", Value: forward.Number(from.tp)},
	}
	if !given.Has("tp_size") {
		fields = append(fields, forward.Field{Name: "tp_size", Value: forward.Number(from.tp)})
	}
	if rank, ok := given.Int("dp_rank"); ok {
		fields = append(fields, forward.Field{Name: "remote_dp_rank", Value: forward.Number(rank)})
	}
	return body.With(forward.Field{Name: "kv_transfer_params", Value: given.With(fields...)}), nil
}

// RequestID returns "".
func (Connector) RequestID(*forward.Pair) string { return "" }

type engine struct {
	host      []byte // JSON
	port      int
	handshake int
	tp, dp    int
}

// engineOf reads a registration; what it lacks is as ATOM's defaults are.
func engineOf(w *fleet.Worker) (engine, error) {
	params, err := forward.Param(w)
	if err != nil {
		return engine{}, err
	}
	e := engine{host: params.Get("host"), port: w.Port, handshake: defaultHandshake, tp: 1, dp: max(1, w.DPSize)}
	if len(e.host) == 0 {
		e.host = strconv.AppendQuote(nil, w.Host)
	}
	for _, f := range []struct {
		name string
		dst  *int
	}{{"http_port", &e.port}, {"handshake_port", &e.handshake}, {"tp_size", &e.tp}, {"dp_size", &e.dp}} {
		if n, ok := params.Int(f.name); ok && n > 0 {
			*f.dst = n
		}
	}
	return e, nil
}
