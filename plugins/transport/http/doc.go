// Package http sends requests to engines over HTTP: the [forward.Transport] for
// workers that register with request_transport "http".
//
// The default is an HTTP/1.1 client of its own (exchange, pool, head, body): it
// knows how far a request got before it failed, which the retry rules need, it
// refuses every response that two readers could understand differently, and it
// allocates half of what net/http's client does. With Config.Protocol "h2c" the
// requests go through net/http's client over HTTP/2 instead (std), behind the
// same type; the tests send one corpus through both and compare.
//
// Requests are sent whole: head and small body in one write. Responses are read
// strictly (RFC 9112): a message with both Content-Length and Transfer-Encoding,
// two Content-Lengths, folded headers, bare CR or LF, or a head above 64 KiB is
// malformed. Informational responses are skipped; redirects are not followed.
//
// # Concurrency
//
// A [Transport] may be used by any number of goroutines. A connection belongs
// to one exchange at a time; only a canceled context closes it from outside.
package http
