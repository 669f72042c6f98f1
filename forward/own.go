package forward

import (
	"net"
	"net/http"
	"strings"

	"pointsman/fleet"
)

// ownFallback returns this forwarder's own worker, when the gateway has fallen
// back to this forwarder: the named worker is another's, and the own one is among
// those behind it. Else "". A forwarder that cannot tell which worker is its own
// sends the request to the named one, whose engine may well be there.
func (x *exchange) ownFallback(snap *fleet.Snapshot) string {
	if x.route.fallback == "" || x.isOwn(snap.Worker(x.route.worker)) {
		return ""
	}
	for id := range strings.SplitSeq(x.route.fallback, ",") {
		if w := snap.Worker(strings.TrimSpace(id)); x.isOwn(w) {
			return w.ID
		}
	}
	return ""
}

// isOwn reports whether w is the worker that this forwarder stands beside: the one
// it was told, or the one whose endpoint the gateway has dialed.
func (x *exchange) isOwn(w *fleet.Worker) bool {
	if w == nil {
		return false
	}
	if x.cfg.OwnWorker != "" {
		return w.ID == x.cfg.OwnWorker
	}
	local, ok := x.r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at := local.String()
	if w.Endpoint != "" {
		return w.Endpoint == at
	}
	host, _, err := net.SplitHostPort(at)
	return err == nil && host == w.Host
}
