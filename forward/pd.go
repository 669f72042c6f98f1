package forward

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"pointsman/fleet"
	"pointsman/picker"
)

// Ends of a prefill leg that are not knobs.
const (
	maxHandoff   = 8 << 20                // bytes of a prefill answer that a decode leg is made from
	prefillGrace = time.Second            // for a prefill leg whose decode leg is complete: so that its connection can be kept
	hearing      = 100 * time.Millisecond // for news of the prefill leg when the decode worker answers 500
	decodeDials  = 2                      // workers that a finished prefill leg's KV cache is offered to (failover 2B)
)

// errLeftOver ends a prefill leg that goes on behind its decode leg's end.
var errLeftOver = errors.New("the decode leg is complete")

// legs is one attempt at a request with a pair of workers.
//
// The engines wait for each other, for minutes if need be: so a leg that fails
// before the client has got a byte ends the other one, and the next attempt has
// another room. Once the decode leg has produced something the prefill leg has
// done its part and is left alone, unless the decode leg breaks or the client
// leaves (Infera infera/router/disagg.py; defects P10, P23).
type legs struct {
	a      *attempt
	conn   Connector
	pair   *Pair
	body   *Object
	chosen picker.Decision // as picked: its prefill leg is the one that runs

	mu    sync.Mutex
	began bool // the decode leg has produced something
}

// runPair sends the two legs of a's decision.
func (a *attempt) runPair() error {
	x, d := a.x, a.decision
	conn := x.s.deps.Connectors[d.Prefill.Protocol]
	if conn == nil {
		return errPD
	}
	x.paired = true
	if x.object == nil {
		if x.body == nil {
			return errPD
		}
		var err error
		if x.object, err = ParseObject(*x.body); err != nil {
			return errBrokenBody
		}
	}
	var random [40]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	l := &legs{
		a: a, conn: conn, body: x.object, chosen: *d,
		pair: newPair(d.Prefill, d.Worker, d.PrefillRank, d.Rank, random),
	}
	a.begin = l.begin
	if !x.redispatched && x.cfg.PrefillFailure == PrefillRetry {
		a.await(d.Prefill, legPrefill, l.leave)
	}
	if conn.Topology() == Concurrent {
		return l.concurrent()
	}
	return l.serial()
}

// begin notes that the decode leg has produced something. Its error says that the
// attempt was ended before.
func (l *legs) begin() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if why := l.a.life.Err(); why != nil {
		return l.a.cause(why)
	}
	l.began = true
	return nil
}

// fail ends the attempt with cause, unless the decode leg has begun to answer.
func (l *legs) fail(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.began {
		l.a.cancel(cause)
	}
}

// concurrent runs both legs at once. The prefill leg has a goroutine, which
// outlives the attempt by prefillGrace at most.
func (l *legs) concurrent() error {
	pre, err := l.conn.Prefill(l.pair, l.body)
	if err != nil {
		return &legError{err}
	}
	dec, err := l.conn.Decode(l.pair, l.body, nil)
	if err != nil {
		return &legError{err}
	}
	x := l.a.x
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(&l.a.life))
	ended := make(chan struct{})
	var failed error // why the prefill leg failed; to be read once it has ended
	x.s.legs.Go(func() {
		defer close(ended)
		defer cancel(nil)
		if limit := x.cfg.PrefillTimeout; limit > 0 {
			// Past the decode leg's beginning it is no news that the answer is slow.
			late := time.AfterFunc(limit, func() { l.fail(&legError{errPrefillTimeout}) })
			defer late.Stop()
		}
		if _, failed = l.runPrefill(ctx, pre); failed != nil {
			l.fail(&legError{failed})
			if errors.Is(context.Cause(ctx), errLeftOver) {
				l.abort(l.pair.Prefill, errLeftOver) //nolint:contextcheck // it is to be told though ctx is done
			}
		}
	})
	// The decode leg is given up first: a prefill leg that went before it would
	// leave it to wait for what never comes.
	err = l.decode(dec)
	if err != nil {
		first := l.hear(err, ended)
		l.abort(l.pair.Decode, err)
		cancel(context.Canceled)
		<-ended // no leg of a failed attempt is left when the next one begins
		l.abort(l.pair.Prefill, failed)
		if first && failed != nil {
			return &legError{failed}
		}
		return err
	}
	timer := time.AfterFunc(prefillGrace, func() { cancel(errLeftOver) })
	context.AfterFunc(ctx, func() { timer.Stop() })
	return nil
}

// hear reports whether the prefill leg has ended by itself when the decode leg
// fails with err. A decode worker that lost its partner in the middle may say so
// before the partner's own connection does.
func (l *legs) hear(err error, ended <-chan struct{}) bool {
	var ans *answer
	if !errors.As(err, &ans) || ans.status < http.StatusInternalServerError {
		return false
	}
	moment := time.NewTimer(hearing)
	defer moment.Stop()
	select {
	case <-ended:
		return true
	case <-moment.C:
	case <-l.a.x.ctx.Done():
	}
	return false
}

// serial runs the prefill leg, then the decode leg with what it handed over.
func (l *legs) serial() error {
	pre, err := l.conn.Prefill(l.pair, l.body)
	if err != nil {
		return &legError{err}
	}
	ctx, cancel := context.WithCancelCause(&l.a.life)
	defer cancel(nil)
	if limit := l.a.x.cfg.PrefillTimeout; limit > 0 {
		late := time.AfterFunc(limit, func() { cancel(errPrefillTimeout) })
		defer late.Stop()
	}
	answered, err := l.runPrefill(ctx, pre)
	if err != nil {
		if l.a.life.Err() != nil { // the attempt itself was ended
			err = l.a.cause(err)
		}
		if errors.Is(err, errClientGone) {
			return err
		}
		return &legError{err} // the decode worker has not been asked yet
	}
	for {
		dec, err := l.conn.Decode(l.pair, l.body, answered)
		if err != nil {
			l.a.x.s.metrics.pairs.failures.WithLabelValues(legFailure(legPrefill, reasonOf(err, false), err)).Inc()
			return &legError{err}
		}
		err = l.decode(dec)
		if err == nil || l.conn.Topology() != Pull || !l.undialed(err) || l.a.x.undialed >= decodeDials || !l.mayMove(err) {
			return err
		}
		if err = l.move(err); err != nil {
			return err
		}
	}
}

// decode sends the decode leg and relays its answer to the client.
func (l *legs) decode(body []byte) error {
	d, x := l.a.decision, l.a.x
	to := &sending{leg: legDecode, worker: d.Worker, affinity: true, connect: x.cfg.DecodeConnectTimeout, timed: l.a}
	err := l.a.relay(to, l.request(d.Worker, body, d.Rank))
	if l.undialed(err) {
		if !uncarried(err) {
			x.undialed++
		}
		return &decodeDialError{err}
	}
	return err
}

// request returns the request of a leg that runs on w.
func (l *legs) request(w *fleet.Worker, body []byte, rank int) *Request {
	x := l.a.x
	h := maps.Clone(x.outHeader)
	forged := l.conn.RequestID(l.pair)
	if forged != "" {
		h[headerClientID] = []string{forged}
	}
	setRank(h, rank)
	// Infera keeps no connections for pairs either (infera/router/disagg.py).
	return &Request{ID: x.id, Method: x.r.Method, Target: x.target, Header: h, Body: x.retained(w, body), Fresh: true, Named: forged != ""}
}

// cause returns why ctx was canceled, or else err.
func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); err != nil && why != nil {
		return why
	}
	return err
}

// transport returns what reaches w: the legs of a pair may differ (Infera defect
// N15).
func (x *exchange) transport(w *fleet.Worker) (Transport, error) {
	name := w.Transport
	if name == "" {
		name = "http"
	}
	if tr := x.s.deps.Transports[name]; tr != nil {
		return tr, nil
	}
	return nil, errNoTransport
}
