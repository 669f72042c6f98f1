// Package stack runs the whole product on one machine as real processes: an
// embedded etcd, a NATS broker where it is asked for, simulated workers each with
// its forwarder, the EPP, and Envoy with one of the sample bootstraps. The demo, the benchmarks and the end-to-end
// tests start their fleets with it.
//
// Infera's EPP names a worker's forwarder as <worker host>:<destination port>,
// one port for the whole fleet. So each worker gets a loopback address of its
// own out of a /24 that the stack has to itself, and the ports are the same in
// every stack: stacks run side by side without any port being agreed on.
// This needs Linux, where all of 127.0.0.0/8 is the machine itself.
//
// Readiness is polled at the real endpoints; nothing waits blindly. Each process
// writes to a log file of its own, whose tail is part of the error when
// something fails. Children are killed when their parent goes, however it goes.
//
// # Concurrency
//
// Start and Close are called by one goroutine. Between them the methods of
// [Stack], [Worker] and [Process] may be called from any goroutine, except that
// one process is restarted by one goroutine at a time.
package stack
