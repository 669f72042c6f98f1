// Package e2e has only tests. They run the real binaries behind a real Envoy
// with a real etcd, and believe nothing but what clients got and what the
// engines' receipts say: an HTTP 200 does not prove that a request was delivered
// once, whole, and to the right worker.
//
// The binaries come from $POINTSMAN_BIN (make test sets it), or are built once.
// Envoy comes from tools/fetch-envoy; without it the tests fail and say so.
//
// # Concurrency
//
// Tests run in parallel. Those that break things have a fleet of their own; the
// others share one, and tell their requests apart by request id.
package e2e
