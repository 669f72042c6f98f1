package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"pointsman/fleet"
)

// abortTime bounds the request that tells an engine to give a leg up.
const abortTime = time.Second

// abort tells w to give up its leg, which ended with err. Its connection is
// closed already, which engines may notice late or, in the middle of a transfer,
// not at all. One that got no byte of the leg, or has answered it, is not told.
func (l *legs) abort(w *fleet.Worker, err error) {
	conn, ok := l.conn.(Aborter)
	if !ok || !mayRun(err) {
		return
	}
	target, body := conn.Abort(l.pair, w)
	x := l.a.x
	tr, none := x.transport(w)
	if body == nil || none != nil {
		return
	}
	head := http.Header{"Content-Type": {"application/json"}, headerAttemptID: {x.attemptID()}}
	if auth := x.outHeader["Authorization"]; auth != nil {
		head["Authorization"] = auth
	}
	req := &Request{ID: x.id, Method: http.MethodPost, Target: target, Header: head, Body: body}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), abortTime)
	x.s.metrics.aborts.Inc()
	x.s.legs.Go(func() {
		defer cancel()
		resp, err := tr.Do(ctx, w, req)
		if err != nil {
			return // there is nothing else that could be done
		}
		_, _ = io.CopyN(io.Discard, resp.Body, smallBody)
		_ = resp.Body.Close()
	})
}

// mayRun reports whether a leg that ended with err may still be running.
func mayRun(err error) bool {
	var ans *answer
	var broken *Error
	switch {
	case err == nil, errors.As(err, &ans), errors.Is(err, errNoTransport), errors.Is(err, errPD):
		return false
	case errors.As(err, &broken):
		return broken.Stage >= StageWrite // the last byte may have gone before the write returned
	}
	return true
}
