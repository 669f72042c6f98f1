// Package testfleet is what tests across rooms need of a fleet: real servers
// inside the test's process, and ways to do them harm.
//
// # Concurrency
//
// What a test starts ends with it. An [Etcd] and a [NATS] belong to the test's goroutine; a
// [Proxy] may be used from any.
package testfleet
