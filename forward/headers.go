package forward

import (
	"net/http"
	"strings"
	"time"

	"pointsman/trust"
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
	headerPick      = "X-Infera-Picker-Id"   // reports.Header
	headerBudget    = "X-Request-Timeout-Ms" // how long the client waits for all of the answer
)

// internalPrefix marks headers between our own programs; a client's are never
// passed on (failover S1).
const internalPrefix = "X-Infera-"

// field returns the first value of a header, whose name is canonical: Get would see to
// that each time.
func field(h http.Header, canonical string) string {
	if v := h[canonical]; len(v) > 0 {
		return v[0]
	}
	return ""
}

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
		dst[k] = v
	}
}

// requestID returns the ID that h asks for, or a new one.
func requestID(h http.Header, now time.Time) string {
	if id := trust.RequestID(field(h, headerRequestID), field(h, headerClientID)); id != "" {
		return id
	}
	return trust.NewID(now)
}
