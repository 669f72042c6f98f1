package nats

import (
	"bytes"
	"errors"
	"net/http"
	"strings"

	"pointsman/forward"
	"pointsman/wire"
)

// headerRoom is what the rs-inbox header adds to a message, at most: the broker
// counts headers against max_payload too.
const headerRoom = 512

// unfit returns the answer to a request that no envelope can hold, nil when one
// might: workers only post, and only JSON.
func unfit(req *forward.Request) *forward.Response {
	switch {
	case req.Method != http.MethodPost:
		return problem(http.StatusMethodNotAllowed, "method_not_allowed", "workers behind the request broker take POST only", 0)
	case req.Header.Get("Content-Encoding") != "":
		return problem(http.StatusUnsupportedMediaType, "unsupported_encoding", "workers behind the request broker take JSON without a content encoding only", 0)
	}
	return nil
}

// notCarried is the answer to a body that appendEnvelope refused.
func notCarried(error) *forward.Response {
	return problem(http.StatusUnsupportedMediaType, "unsupported_media_type", "workers behind the request broker take JSON objects only", 0)
}

// appendEnvelope appends req as an envelope. It fails when the body is no JSON
// object.
func appendEnvelope(dst []byte, req *forward.Request, whole bool) ([]byte, error) {
	e := wire.Envelope{Path: req.Target, Stream: !whole || asksStream(req.Body), Headers: envelopeHeaders(req.Header), Body: req.Body}
	out, err := e.Append(dst)
	if errors.Is(err, wire.ErrEnvelope) {
		return dst, err
	}
	return out, nil
}

// asksStream guesses whether a body asks for a stream. A wrong guess costs
// nothing but the frames' size.
func asksStream(body []byte) bool {
	_, rest, found := bytes.Cut(body, []byte(`"stream"`))
	rest = bytes.TrimLeft(rest, " \t\r\n:")
	return found && bytes.HasPrefix(rest, []byte("true"))
}

// envelopeHeaders returns what of h the engine gets: Authorization, trace
// context, IDs and rank too, which Infera's routers drop (infera.md H1).
func envelopeHeaders(h http.Header) map[string]string {
	out := make(map[string]string, len(h)+1)
	for name, values := range h {
		switch name {
		case "Accept-Encoding", "Content-Type", "Content-Length", "Host", "Connection", "Keep-Alive",
			"Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect", "Proxy-Connection", "Proxy-Authorization":
			continue // the worker's client sets them, or they are the hop's
		}
		if v := strings.Join(values, ", "); plain(v) {
			out[name] = v
		}
	}
	// The worker passes the engine's bytes on as they are, and says to the engine
	// that it takes gzip unless told otherwise.
	out["Accept-Encoding"] = "identity"
	return out
}

// plain reports whether a worker's HTTP client can send v: Infera's fails the
// whole request on a character that is not ASCII.
func plain(v string) bool {
	for i := range len(v) {
		if c := v[i]; c >= 0x7f || c < ' ' && c != '\t' {
			return false
		}
	}
	return true
}
