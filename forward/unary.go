package forward

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// relayBody relays a response that is no event stream, with the worker's status
// and headers. A small or JSON body is read before the client gets a byte, so
// that a cut can still become an attempt at another worker; a larger one that
// breaks ends in an aborted connection, never in a clean end.
func (x *exchange) relayBody(a *attempt, resp *Response) error {
	lent := x.s.bufs.get(smallBody)
	defer x.s.bufs.put(lent)
	buf := (*lent)[:smallBody]

	isJSON := mediaType(resp.Header) == "application/json"
	n, rerr := a.read(resp.Body, buf)
	for rerr == nil && n < len(buf) && (isJSON || resp.Length >= 0 && resp.Length <= smallBody) {
		var more int
		more, rerr = a.read(resp.Body, buf[n:])
		n += more
	}
	if rerr != nil && !errors.Is(rerr, io.EOF) {
		return rerr
	}
	if rerr != nil && isJSON && resp.CloseDelimited && !json.Valid(buf[:n]) {
		return &Error{Stage: StageBody, Err: ErrTruncated}
	}
	if resp.Status < http.StatusBadRequest {
		if err := x.firstToken(a); err != nil {
			return err
		}
	}
	if isJSON {
		x.noteFinish(buf[:n])
	}
	h := x.w.Header()
	copyResponse(h, resp.Header)
	if resp.Length >= 0 {
		h["Content-Length"] = x.value(strconv.FormatInt(resp.Length, 10))
	}
	x.commit(resp.Status)
	return x.copyBody(a, resp, buf, n, rerr, isJSON)
}

// copyBody writes buf[:n], which the last read returned together with rerr,
// and all that follows it.
func (x *exchange) copyBody(a *attempt, resp *Response, buf []byte, n int, rerr error, isJSON bool) error {
	f := flush // unknown formats may be streams of their own kind
	if isJSON || resp.Length >= 0 {
		f = noFlush
	}
	var last byte // that is not white space
	for {
		if rerr != nil {
			f = noFlush
		}
		if trimmed := trimSpace(buf[:n]); len(trimmed) > 0 {
			last = trimmed[len(trimmed)-1]
		}
		if n > 0 {
			if err := x.write(buf[:n], f); err != nil {
				return err
			}
		}
		if rerr != nil {
			break
		}
		n, rerr = a.read(resp.Body, buf)
	}
	if errors.Is(rerr, io.EOF) && isJSON && resp.CloseDelimited && last != '}' && last != ']' {
		rerr = &Error{Stage: StageBody, Err: ErrTruncated}
	}
	if !errors.Is(rerr, io.EOF) {
		x.abort = true
		return rerr
	}
	x.trailers(resp)
	return nil
}

func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\n' || b[len(b)-1] == '\r' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// mediaType returns the media type of a response without its parameters.
func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(field(h, "Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// isStream reports whether the events of a response can be read here. The
// compressed stream of a path that we only pass through can't be: it is relayed
// like any body of unknown format.
func isStream(resp *Response) bool {
	if resp.Status != http.StatusOK || mediaType(resp.Header) != "text/event-stream" {
		return false
	}
	enc := field(resp.Header, "Content-Encoding")
	return enc == "" || strings.EqualFold(enc, "identity")
}
