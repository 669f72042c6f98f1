// Package forward is the forwarder's way of one request: read the body, obey
// the Endpoint Picker's headers or pick a worker, send, relay the answer, and
// move to another worker while nothing has reached the client.
//
// A request's way through the files: admit (identity, body, scan) -> direct
// (who serves it) -> attempt (one try after another, each with its timers) ->
// stream or unary (relay to the client). The answers that need no worker are in
// fleetapi; errors is the only place where an error becomes a status code.
//
// # Retries
//
// An attempt goes through the stages dial, write, dispatched, head and body
// ([Stage]). While the client has not been sent a byte, a failed attempt may be
// repeated on a worker that was not tried yet, at most Config.MaxRetries times.
// Faults of the connection, answers of 500 and above, and 429 are repeated;
// other 4xx never are, because every worker would answer the same. Once a byte
// went out nothing is repeated: a broken stream ends in one error event and
// without [DONE], a broken plain body in an aborted connection.
//
// # Pairs
//
// A prefill/decode pair is one attempt with two legs (pd): a [Connector] makes
// their bodies, each goes over its own worker's transport, and the decode leg's
// answer is relayed like any other. Until it has produced something, a leg that
// fails ends the other one, and the next attempt is another pair in another room.
// A prefill leg is repeated once, whatever it had done, for it computes nothing
// but a cache; a decode leg only when it cannot have run.
//
// # What is not touched
//
// Bodies go to the worker and events to the client byte for byte. A compressed
// request body is refused (415) where the prompt has to be read, and passed on
// as it is on every other path. What a worker compresses against our
// Accept-Encoding is decompressed, or refused (coding), so that no stream is
// relayed blind. A client that closes its sending side counts as gone, as net/http sees it.
//
// # Concurrency
//
// Each request is served by the goroutine that net/http gives it; besides that
// the package starts none but Serve's own and one for each prefill leg that runs
// beside its decode leg, which ends a second after the request at the latest. A
// Server may serve any number of requests at once.
package forward
