package forward

import (
	"errors"
	"net/http"

	"pointsman/admission"
	"pointsman/picker"
)

// The endings of requests, as the label outcome of infera_router_requests_total.
// Each request has exactly one, and none is for the rest (failover 2E).
const (
	endOK           = "ok"
	endCancel       = "client_cancel"
	endShed         = "shed"            // refused for want of room: by the gate, by us while shutting down, or by all workers tried
	endQueue        = "queue_timeout"   // waited in vain for room
	endClientError  = "client_error"    // 4xx, ours or a worker's
	endUnavailable  = "unavailable"     // nobody can serve it
	endUpstream     = "upstream_error"  // workers failed before a byte reached the client
	endTruncated    = "truncated"       // and behind one
	endConnect      = "timeout_connect" // a limit of a stage, whether before the first byte or behind it
	endPrefill      = "timeout_prefill"
	endFirstToken   = "timeout_first_token"
	endIdle         = "timeout_idle"
	endTotal        = "timeout_total"
	endClientBudget = "timeout_client"
)

// gone reports whether the client has left, as far as err, which ended the request,
// does not say otherwise: net/http cancels the request's context also when the time
// for its body is up.
func (x *exchange) gone(err error) bool {
	return x.over() && !errors.Is(err, errDraining) && !errors.Is(err, errSlowBody)
}

// over reports whether the client has left, or the server ends its requests.
func (x *exchange) over() bool { return x.life.Err() != nil || x.r.Context().Err() != nil }

// ending says how the request has ended.
func (x *exchange) ending(err error) string {
	switch {
	case errors.Is(err, errClientGone), err != nil && x.gone(err):
		return endCancel
	case err == nil && x.status < http.StatusBadRequest:
		return endOK
	case err == nil && x.status < http.StatusInternalServerError:
		return endClientError
	case err == nil:
		return endUpstream
	}
	if _, waited := errors.AsType[*unplaced](err); waited {
		return endQueue
	}
	if end := limitOf(err); end != "" {
		return end
	}
	_, event := errors.AsType[*errorEvent](err)
	refusal, refused := errors.AsType[*admission.Refusal](err)
	switch {
	case x.abort, x.status < http.StatusBadRequest, event:
		return endTruncated
	case refused && refusal.Status == http.StatusGatewayTimeout:
		return endQueue
	case refused, errors.Is(err, errDraining), x.status == http.StatusTooManyRequests:
		return endShed
	case x.status < http.StatusInternalServerError:
		return endClientError
	case errors.Is(err, picker.ErrNoWorker), errors.Is(err, picker.ErrNoEndpoint), errors.Is(err, errStale), errors.Is(err, errNoTransport), errors.Is(err, errPD):
		return endUnavailable
	}
	return endUpstream
}

// limitOf returns the ending of a request of which a timer ran out, else "".
func limitOf(err error) string {
	for _, limit := range [...]struct {
		err error
		end string
	}{
		{errPrefillTimeout, endPrefill},
		{errFirstToken, endFirstToken},
		{errIdle, endIdle},
		{errMaxDuration, endTotal},
		{errClientBudget, endClientBudget},
	} {
		if errors.Is(err, limit.err) {
			return limit.end
		}
	}
	if reasonOf(err, false) == tryConnectLimit {
		return endConnect
	}
	return ""
}
