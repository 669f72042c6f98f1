// Package chaos breaks a real fleet on purpose and judges what clients, engines
// and programs made of it.
//
// A run starts three prefill, three decode and two mixed engines, each with its
// forwarder, Envoy, two endpoint pickers, a NATS broker and etcd (internal/stack),
// with fault proxies between the forwarders and all they talk to. A [Schedule]
// drawn from a seed breaks and heals parts while clients send requests whose
// tokens name the attempt that made them; then everything is healed, and
// internal/history checks the clients' log, the engines' receipts and the
// programs' metrics. The same seed gives the same schedule and the same requests;
// how the two meet is up to the machine.
//
// # Concurrency
//
// [Run] and [Soak] block and end all that they start. Each request, each fault
// and the sampler of metrics has a goroutine of its own.
package chaos
