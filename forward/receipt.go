package forward

import (
	"context"
	"errors"
	"net"
	"net/http"

	"pointsman/breaker"
)

// leg is which part of a request a try serves, by its letter in attempt IDs.
type leg uint8

// The legs. Attempt IDs are request ID, slash, letter and number: rid/m1.
const (
	legMixed   leg = iota // m: the whole request
	legPrefill            // p
	legDecode             // d
	legCount
)

func (l leg) letter() byte { return "mpd"[l] }

func (l leg) String() string { return [...]string{"mixed", "prefill", "decode"}[l] }

// reason is how a try ended, as receipts and metrics say it.
type reason uint8

// The reasons. The zero value is a try that has not ended.
const (
	tryOpen         reason = iota
	tryOK                  // answered: all of it, or its first token
	tryRefused             // no connection
	tryConnectLimit        // no connection in time
	tryReset               // the connection died before an answer
	tryInvalid             // what came is no response
	tryBusy                // 429, or 503 with Retry-After: full, not sick
	try4xx                 // refused as the request's fault
	try5xx                 // failed, and said so
	tryErrorEvent          // the same as a stream's first event
	tryIdle                // silent before the first token
	tryFirstToken          // no first token in time
	tryCut                 // the body broke before the first token
	tryStreamCut           // the body broke behind it
	tryStreamIdle          // silent behind it
	tryStreamError         // an error event behind it
	tryTransfer            // a pair's handoff: the prefill leg was answered, the decode leg failed before its first token
	tryPrefillLimit        // no answer of a prefill leg in time
	tryHandoff             // a prefill answer without what the decode leg needs
	tryAborted             // ended by us: the client left, the partner leg failed, a limit of the whole request
	tryBlameless           // a broker broke, or the worker is leaving on purpose
	tryUnusable            // no transport, or a registration that lacks something
	reasonCount
)

// reasons are the words for receipts and labels, and what each means for the
// worker's circuit. extproc reads the words: see its table.
var reasons = [reasonCount]struct { //nolint:gochecknoglobals // an immutable table
	word    string
	outcome breaker.Outcome
}{
	tryOpen:         {"open", breaker.Neutral},
	tryOK:           {"ok", breaker.Success},
	tryRefused:      {"refused", breaker.Connect},
	tryConnectLimit: {"connect_timeout", breaker.Connect},
	tryReset:        {"reset", breaker.Connect},
	tryInvalid:      {"invalid_response", breaker.Origin},
	tryBusy:         {"busy", breaker.Busy},
	try4xx:          {"4xx", breaker.Neutral},
	try5xx:          {"5xx", breaker.Origin},
	tryErrorEvent:   {"error_event", breaker.Origin},
	tryIdle:         {"idle_timeout", breaker.Origin},
	tryFirstToken:   {"first_token_timeout", breaker.Origin},
	tryCut:          {"truncated", breaker.Origin},
	tryStreamCut:    {"stream_truncated", breaker.Stream},
	tryStreamIdle:   {"stream_idle_timeout", breaker.Stream},
	tryStreamError:  {"stream_error", breaker.Stream},
	tryTransfer:     {"transfer", breaker.Transfer},
	tryPrefillLimit: {"prefill_timeout", breaker.Origin},
	tryHandoff:      {"handoff", breaker.Origin},
	tryAborted:      {"aborted", breaker.Neutral},
	tryBlameless:    {"blameless", breaker.Neutral},
	tryUnusable:     {"unusable", breaker.Neutral},
}

func (r reason) String() string           { return reasons[r].word }
func (r reason) outcome() breaker.Outcome { return reasons[r].outcome }

// reasonOf says how a try ended with err. begun tells whether the first token
// had come.
func reasonOf(err error, begun bool) reason {
	var ans *answer
	var event *errorEvent
	var broken *Error
	switch {
	case err == nil:
		return tryOK
	case errors.As(err, &ans):
		return reasonOfAnswer(ans)
	case errors.As(err, &event):
		return reasonOfStatus(event.status, begun)
	case errors.Is(err, errFirstToken):
		return tryFirstToken
	case errors.Is(err, errPrefillTimeout):
		return tryPrefillLimit
	case errors.Is(err, ErrHandoff):
		return tryHandoff
	case errors.Is(err, errIdle):
		if begun {
			return tryStreamIdle
		}
		return tryIdle
	case errors.Is(err, errClientGone), errors.Is(err, errDraining), errors.Is(err, errMaxDuration), errors.Is(err, errClientBudget), errors.Is(err, context.Canceled):
		return tryAborted
	case errors.Is(err, errNoTransport), errors.Is(err, errPD), errors.Is(err, ErrPairParams):
		return tryUnusable
	case errors.Is(err, ErrBlameless):
		return tryBlameless
	case errors.As(err, &broken):
		return reasonOfBroken(broken, begun)
	case begun:
		return tryStreamCut
	}
	return tryInvalid
}

// reasonOfAnswer tells apart an answer, and an error event that came as the
// first thing in a stream, which has no header.
func reasonOfAnswer(ans *answer) reason {
	switch {
	case ans.refused():
		return tryBusy
	case ans.header == nil && ans.status >= http.StatusInternalServerError:
		return tryErrorEvent
	}
	return reasonOfStatus(ans.status, false)
}

func reasonOfStatus(status int, begun bool) reason {
	switch {
	case status < http.StatusBadRequest:
		return tryOK
	case status < http.StatusInternalServerError:
		return try4xx
	case begun:
		return tryStreamError
	}
	return try5xx
}

func reasonOfBroken(e *Error, begun bool) reason {
	switch {
	case e.Stage == StageDial && timedOut(e):
		return tryConnectLimit
	case e.Stage == StageDial:
		return tryRefused
	case begun:
		return tryStreamCut
	case errors.Is(e, ErrProtocol):
		return tryInvalid
	case e.Stage == StageBody:
		return tryCut
	}
	return tryReset
}

// timedOut reports whether err is a limit of time that has passed.
func timedOut(err error) bool {
	var limit net.Error
	return errors.As(err, &limit) && limit.Timeout()
}

// receipt says how the tries have ended, in the order in which they began:
// "d1@w3;refused,d2@w5;ok" (failover 2E). Of the one that is answering the status
// tells. Of
// prefill legs that still run nothing is said; "none" says that no worker had a
// part in the answer.
func (x *exchange) receipt(answering *try, status int) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var buf [128]byte
	b := buf[:0]
	for _, t := range x.tries {
		why := t.why
		if t == answering && why == tryOpen {
			why = reasonOfStatus(status, true)
		}
		if why == tryOpen {
			continue
		}
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(b, t.leg.letter(), '0'+t.n, '@')
		b = append(b, t.worker...)
		b = append(append(b, ';'), why.String()...)
	}
	if len(b) == 0 {
		return "none"
	}
	return string(b)
}
