package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"pointsman/trust"
)

// Headers of route tickets, canonical.
const headerTicket = "X-Infera-Route-Sig"

var errPeer = errors.New("who connects is not a trusted gateway")

// vouch finds out whether the routing headers are an endpoint picker's. Others are
// forgotten, so that the policy picks, or refused (failover.md §5, S2).
func (x *exchange) vouch(now time.Time) {
	var err error
	switch x.cfg.Trust {
	case TrustNone:
		return
	case TrustHMAC:
		x.ticket, err = x.s.deps.Tickets.Check(now, x.r.Header.Get(headerTicket), x.signed())
	case TrustMTLS:
		if !trust.Peer(peerOf(x.r.Context()), x.cfg.TrustedPeers) {
			err = errPeer
		}
	}
	if err == nil {
		return
	}
	x.s.metrics.directed(directUntrusted)
	x.s.deps.Log.LogAttrs(x.r.Context(), slog.LevelDebug, "routing headers not believed",
		slog.String("request_id", x.id), slog.String("peer", x.r.RemoteAddr), slog.Any("error", err))
	x.direct, x.route = false, routing{}
	if x.cfg.Untrusted == UntrustedReject {
		x.untrusted = err
	}
}

// signed is what the EPP has signed, if these headers are its own.
func (x *exchange) signed() *trust.Route {
	h, r := x.r.Header, &x.route
	return &trust.Route{
		RequestID: trust.RequestID(h.Get(headerRequestID), h.Get(headerClientID)),
		Worker:    r.worker, Prefill: r.prefill, Fallback: r.fallback, Host: x.r.Host,
		Rank: r.rank, PrefillRank: r.prefillRank, PrefillSkip: h.Get(headerPrefillSkip),
	}
}

// peerOf returns the state of the connection that a request came by, whose handshake
// is done by then; nil without TLS.
func peerOf(ctx context.Context) *tls.ConnectionState {
	guarded := connOf(ctx)
	if guarded == nil {
		return nil
	}
	conn, ok := guarded.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	state := conn.ConnectionState()
	return &state
}
