// Package nats sends requests to engines through a NATS broker: the
// [forward.Transport] for workers that register with request_transport "nats"
// (Infera infera/common/nats_request.py).
//
// # The publish form
//
// A request is a core publish to infera.req.<token> whose reply subject and
// rs-inbox header both name the same fresh inbox. Of the three possible forms it
// is the only one that
//
//   - a core worker and a JetStream worker both answer: the header survives the
//     stream, the reply subject does not;
//   - makes the broker say at once, with a 503 on the inbox, that nobody is
//     subscribed: without a reply subject there is no such message, and a request
//     to a dead worker would wait for the idle timeout (N1);
//   - brings a storage acknowledgment when a stream has captured the request.
//     Such a stream counts as a subscriber, so no 503 can come; the
//     acknowledgment starts a probe instead, see below, and names the message to
//     delete when it must not run any more (N5).
//
// What else the reply subject brings is ignored: the storage acknowledgments
// themselves and the empty message behind each answer.
//
// # Dead workers
//
// A probe is a message on the worker's cancel subject that names no request: the
// worker ignores it, and the broker answers 503 when the worker is not
// connected. A worker keeps that subscription until the end of its drain.
// Exchanges that are silent for Config.ProbeInterval probe, so that a worker
// that dies does not cost the idle timeout.
//
// # Answers
//
// The status is known only with the last frame, so the first bytes are held
// until they are known to be server-sent events, which commit 200, or the answer
// is complete. Workers are asked to pass on every answer as it comes, whole ones
// too: the broker's max_payload bounds each frame, not the answer (N14).
//
// # Lost frames
//
// Core NATS loses what is published while a connection is down or its reader
// slow. Each connection is an epoch of its own: when it ends, every exchange on
// it ends with an error, and nothing received on a later one can complete it.
// Answers that a client does not take are kept up to Config.ReplyBuffer, then
// the answer is broken off and the worker told to stop; the broker offers no way
// to slow one answer down.
//
// # Concurrency
//
// A [Transport] may be used by any number of goroutines. [Transport.Run] owns the
// connection. The connection's reader puts frames into the queues of exchanges
// and never waits for them; each exchange is read by the goroutine that called
// Do.
package nats
