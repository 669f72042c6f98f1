// Package wire is the language of an Infera fleet: registrations in etcd or in
// a Pod annotation, and the engines' KV cache events. It turns bytes into the
// types of the rooms fleet and kvindex and back, and does nothing else: no I/O,
// no goroutines, no policy.
//
// A registration's way: plugins/discovery (bytes from etcd, a Pod, a file) ->
// [DecodeRegistration] -> fleet.Feed. An event's way: plugins/kvevents (bytes
// off ZMQ or NATS) -> [DecodeBatch] -> kvindex.Feed.
//
// Decoding is liberal in what a peer may leave out or add and strict in what
// the router would act on: a field that is there but makes no sense is an
// error that names it, never a guess. Every decoder is bounded by the length
// of its input, whatever lengths the input claims, and is fuzzed.
//
// # Concurrency
//
// All functions are safe for concurrent use; what a caller passes in to be
// filled belongs to that caller.
package wire
