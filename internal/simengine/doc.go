// Package simengine is a simulated inference engine: it speaks the protocols of
// a vLLM or SGLang worker for real (OpenAI and Anthropic HTTP, KV events over
// ZMQ, registration in etcd or at its Pod) and computes nothing.
//
// A request's way: server (auth, receipt, fault) -> request parsing and the toy
// tokenizer -> [scheduler] (admission against the block [cache], a step loop in
// scaled time) -> one of the response writers. A cache change's way: cache ->
// batch per step -> publisher (loss, delay, replay buffer) -> ZMQ sockets.
//
// Everything a client can ask is deterministic: the same prompt yields the same
// tokens on every worker, so tests can compare answers byte for byte. What must
// not be deterministic is not: the engine's own block hashes have a seed per
// process, as in a real fleet.
//
// Every request leaves a [Receipt]. Tests assert on receipts, because a final
// HTTP 200 does not prove single or safe delivery.
//
// # Concurrency
//
// [Start] returns a running [Engine]; [Engine.Drain], [Engine.Close] or
// [Engine.Kill] end it and every goroutine it owns. One goroutine runs the
// scheduler and sleeps when there is no work; one publishes events; one answers
// replay requests; one keeps the registration. HTTP handlers read their
// sequence's progress through atomics. All exported methods are safe for
// concurrent use.
package simengine
