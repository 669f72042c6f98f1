// Package extproc is the Endpoint Picker's door: an Envoy external processing
// (ext-proc) gRPC server that reads each request's body, asks the picker where
// it should go, and answers with the routing headers.
//
// A request's way: [Server] receives messages through a codec that keeps the
// received bytes as they are (codec.go, view.go) -> an exchange, one per HTTP
// request, drives the conversation (exchange.go, request.go, response.go) ->
// prompt scans the body, picker picks -> answers are assembled by hand around
// slices of the received bytes (answer.go).
//
// The exchange knows nothing of gRPC: a message goes in, answers come out. A
// second transport can feed it as it is.
//
// What the gateway sees is decided by the body modes it names in the first
// message's protocol_config; without one, FULL_DUPLEX_STREAMED is assumed.
//
//	request mode          headers answered          picked                 headers set by
//	FULL_DUPLEX_STREAMED  held until the body ends  with the body          the headers answer
//	BUFFERED              at once                   with the body          the body answer
//	STREAMED, NONE        at once                   by load, body unseen   the headers answer
//
// In FULL_DUPLEX_STREAMED Envoy drops header mutations that arrive with a body
// answer, which is why the headers answer waits. In STREAMED and NONE the model
// is not known when the headers must be answered: use them only with a pool that
// serves one model.
//
// With response body mode NONE Envoy ends the stream right after the response
// headers were answered, and with response headers skipped right after the
// request went out. The load of a pick is released at that moment, since nothing
// tells the end of the generation; the forwarders' reports must stand in then.
//
// # Concurrency
//
// One goroutine per stream runs receive, exchange and send in turn. An exchange
// and its buffers belong to that goroutine and return to a pool when it ends.
// Server's methods are safe for concurrent use.
package extproc
