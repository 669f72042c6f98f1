// Package nixl is the prefill/decode protocol vllm-nixl, of vLLM with
// NixlConnector: the prefill leg's answer says where its KV cache lies, and any
// decode worker of the protocol can fetch it. Infera's launcher registers the
// protocol and its router refuses it (Infera defect P9); the bodies are those of
// the proxy in vLLM's own tests (tests/v1/kv_connector/nixl_integration).
package nixl

import (
	"bytes"

	"pointsman/forward"
)

// Protocol is the name that workers register.
const Protocol = "vllm-nixl"

// Connector implements [forward.Connector]. The zero value is ready for use by
// any number of goroutines.
type Connector struct{}

var _ forward.Connector = Connector{}

const produce = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// Topology returns [forward.Pull].
func (Connector) Topology() forward.Topology { return forward.Pull }

// Prefill returns a body that computes the prompt and one token, and keeps the
// KV cache for a decode worker.
func (Connector) Prefill(_ *forward.Pair, body *forward.Object) ([]byte, error) {
	return body.With(append(forward.Prefilling(body), forward.Field{Name: "kv_transfer_params", Value: []byte(produce)})...), nil
}

// Decode returns the client's body with the handoff of answer as it came. The
// decode engine computes the prompt's last token again, so that the limits of the
// output stay.
func (Connector) Decode(_ *forward.Pair, body, answer *forward.Object) ([]byte, error) {
	given := answer.Get("kv_transfer_params")
	if len(given) == 0 || given[0] != '{' || bytes.Equal(given, []byte("{}")) {
		return nil, forward.ErrHandoff
	}
	return body.With(forward.Field{Name: "kv_transfer_params", Value: given}), nil
}

// RequestID returns "".
func (Connector) RequestID(*forward.Pair) string { return "" }
