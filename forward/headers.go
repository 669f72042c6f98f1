package forward

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/textproto"
	"strings"
	"time"
)

// Names of the headers that this package reads or sets, in canonical form.
const (
	headerWorker    = "X-Worker-Instance-Id"  // Infera: decode or mixed worker chosen by the EPP
	headerPrefill   = "X-Prefill-Instance-Id" // Infera: prefill worker chosen by the EPP
	headerRank      = "X-Data-Parallel-Rank"  // engines: the data-parallel rank to run on
	headerRequestID = "X-Infera-Request-Id"
	headerClientID  = "X-Request-Id"
	headerAttemptID = "X-Infera-Attempt-Id"
	headerAttempts  = "X-Infera-Attempts"    // response: how the attempts ended
	headerBudget    = "X-Request-Timeout-Ms" // how long the client waits for all of the answer
)

// internalPrefix marks headers between our own programs; a client's are never
// passed on (failover S1).
const internalPrefix = "X-Infera-"

// dropped reports whether the canonical request header k stays here: hop-by-hop
// headers (RFC 9110 7.6.1), those a transport writes itself, and routing
// headers, which are for this forwarder or forged.
func dropped(k string) bool {
	switch k {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
		"Host", "Content-Length", "Expect",
		"X-Worker-Fallback-Ids", "X-Prefiller-Host-Port":
		return true
	}
	return routingHeader(k) || strings.HasPrefix(k, internalPrefix) ||
		strings.HasPrefix(k, "X-Gateway-Destination-Endpoint") ||
		strings.HasPrefix(k, "X-Data-Parallel-")
}

// hopByHop reports whether the canonical response header k concerns only the
// connection to the worker, or is the transport's to know.
func hopByHop(k string) bool {
	switch k {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Content-Length":
		return true
	}
	return false
}

// named reports whether a Connection header lists k.
func named(connection []string, k string) bool {
	for _, v := range connection {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), k) {
				return true
			}
		}
	}
	return false
}

// outgoing returns the end-to-end headers of in, as a map of its own.
func outgoing(in http.Header) http.Header {
	connection := in["Connection"]
	out := make(http.Header, len(in)+2)
	for k, v := range in {
		if dropped(k) || connection != nil && named(connection, k) {
			continue
		}
		out[k] = v
	}
	return out
}

// copyResponse adds the end-to-end headers of a worker's response to dst.
func copyResponse(dst, src http.Header) {
	connection := src["Connection"]
	for k, v := range src {
		if hopByHop(k) || k == headerRequestID || k == headerWorker || k == headerAttempts || connection != nil && named(connection, k) {
			continue
		}
		dst[textproto.CanonicalMIMEHeaderKey(k)] = v
	}
}

// requestID returns the ID that h asks for, or a new one.
func requestID(h http.Header, now time.Time) string {
	for _, k := range [...]string{headerRequestID, headerClientID} {
		if id := h.Get(k); validID(id) {
			return id
		}
	}
	return newID(now)
}

// validID reports whether id can be a request ID: it goes into logs and headers.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// newID returns a UUID of version 7 (RFC 9562): sortable by time.
func newID(now time.Time) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:], uint64(now.UnixMilli())<<16)
	_, _ = rand.Read(raw[6:]) // never fails (crypto/rand)
	raw[6] = raw[6]&0x0f | 0x70
	raw[8] = raw[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[:8], raw[:4])
	hex.Encode(text[9:13], raw[4:6])
	hex.Encode(text[14:18], raw[6:8])
	hex.Encode(text[19:23], raw[8:10])
	hex.Encode(text[24:], raw[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
