package forward

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
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
	if why := context.Cause(l.a.ctx); why != nil {
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
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(l.a.ctx))
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
				l.abort(l.pair.Prefill, errLeftOver)
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
	ctx, cancel := context.WithCancelCause(l.a.ctx)
	defer cancel(nil)
	if limit := l.a.x.cfg.PrefillTimeout; limit > 0 {
		late := time.AfterFunc(limit, func() { cancel(errPrefillTimeout) })
		defer late.Stop()
	}
	answered, err := l.runPrefill(ctx, pre)
	if err != nil {
		if l.a.ctx.Err() != nil { // the attempt itself was ended
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

// undialed reports whether err says that the decode leg has reached no worker, so
// that another one can have it. Only what a transport says itself counts: an error
// that names no stage may have come behind bytes of an answer.
func (l *legs) undialed(err error) bool {
	var broken *Error
	dial := uncarried(err) || errors.As(err, &broken) && broken.Stage == StageDial
	return dial && !l.a.x.committed && l.a.ctx.Err() == nil
}

// mayMove reports whether the cap and the budget leave another decode worker to a
// leg that could not be dialed because of err.
func (l *legs) mayMove(err error) bool {
	x := l.a.x
	return x.room(legDecode) && (uncarried(err) || x.mayRetry())
}

// move gives the decode leg, which could not be dialed because of last, another
// worker. The one that it had is given back first: whatever is waited for, nothing
// is held there meanwhile.
func (l *legs) move(last error) error {
	a, x := l.a, l.a.x
	why := a.reason(last)
	x.end(a.last, why, last)
	a.decision.Done(time.Now(), why.outcome())
	x.tried = append(x.tried, a.decision.Worker.ID)
	if uncarried(last) {
		x.passOver(a.decision.Worker)
	}
	x.flight.Moved(time.Now(), x.receipt(nil, 0))
	d := new(picker.Decision)
	if err := x.reserveDecode(a.ctx, l.pair.Prefill, d); err != nil {
		return x.noOther(a.ctx, last, err)
	}
	x.workers = append(x.workers, d.Worker.ID)
	x.fly(d)
	x.s.metrics.decodeDials.Inc()
	x.s.metrics.pairs.failures.WithLabelValues("decode_open_retried").Inc()
	x.s.metrics.failovers.Inc()
	a.decision = d
	moved := *l.pair
	moved.Decode, moved.DecodeRank = d.Worker, d.Rank
	l.pair = &moved
	return nil
}

// alternate reserves another decode worker for the cache that prefill has computed.
func (x *exchange) alternate(prefill *fleet.Worker, d *picker.Decision) (err error) {
	req := x.pick
	req.Tried = x.tried
	*d, err = x.s.deps.Picker.Alternate(time.Now(), &req, prefill)
	return err
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

// runPrefill sends the prefill leg and reads its answer to the end. It tells the
// picker how it went. An answer of 400 or above is an error; the object is nil
// when the legs are concurrent, and whenever there is an error.
func (l *legs) runPrefill(ctx context.Context, body []byte) (*Object, error) {
	x := l.a.x
	x.s.metrics.prefills.Inc()
	leg := x.flyPrefill(&l.chosen)
	got, t, err := l.sendPrefill(ctx, body)
	if err == nil {
		leg.First(time.Now())
	}
	leg.Leave(time.Now())
	why := reasonOfPrefill(ctx, err)
	l.chosen.PrefillDone(time.Now(), why.outcome())
	x.end(t, why, err)
	if err != nil {
		x.s.metrics.prefillFaults.WithLabelValues(why.String()).Inc()
	}
	return got, err
}

func (l *legs) sendPrefill(ctx context.Context, body []byte) (*Object, *try, error) {
	w := l.pair.Prefill
	to := &sending{leg: legPrefill, worker: w, affinity: true}
	resp, t, err := l.a.x.send(ctx, to, l.request(w, body, l.pair.PrefillRank))
	if err != nil {
		return nil, t, cause(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	t.progress.Reach(StageHead)
	got, err := l.readPrefill(ctx, resp)
	if err == nil {
		t.progress.Reach(StageBody)
	}
	return got, t, err
}

// readPrefill reads the prefill leg's answer to its end.
func (l *legs) readPrefill(ctx context.Context, resp *Response) (*Object, error) {
	if err := plain(resp); err != nil {
		return nil, err
	}
	if resp.Status >= http.StatusBadRequest {
		return nil, prefillAnswer(ctx, resp)
	}
	l.a.handed.Store(true)
	if l.conn.Topology() == Concurrent {
		return nil, discard(ctx, resp, dialectOf(l.a.x.kind, l.a.x.r.URL.Path))
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxHandoff+1))
	if err != nil {
		return nil, cause(ctx, err)
	}
	got, err := ParseObject(raw)
	if err != nil || len(raw) > maxHandoff {
		return nil, ErrHandoff
	}
	return got, nil
}

// prefillAnswer reads a failure of the prefill worker, within answerTime.
func prefillAnswer(ctx context.Context, resp *Response) error {
	ans := &answer{status: resp.Status, header: resp.Header, down: resp.Down}
	late := time.AfterFunc(answerTime, func() { _ = resp.Body.Close() })
	defer late.Stop()
	body, err := io.ReadAll(io.LimitReader(resp.Body, smallBody))
	if ctx.Err() != nil {
		return cause(ctx, err)
	}
	ans.body, ans.complete = body, err == nil && len(body) < smallBody
	return ans
}

// discard reads the answer of a concurrent prefill leg, of which nothing is
// needed but whether it is an error.
func discard(ctx context.Context, resp *Response, dial dialect) error {
	if !isStream(resp) {
		_, err := io.Copy(io.Discard, resp.Body)
		return cause(ctx, err)
	}
	var frames framer
	buf := make([]byte, 0, smallBuffer)
	for {
		if len(buf) == cap(buf) {
			if len(buf) >= maxEvent {
				return errEventSize
			}
			buf = append(make([]byte, 0, 2*cap(buf)), buf...)
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		whole := 0
		for next := frames.next(buf); next >= 0; next = frames.next(buf) {
			if raw := buf[whole:next]; dial.meaning(raw) == failed {
				return &answer{status: errorStatus(raw), body: append([]byte(nil), parseEvent(raw).data...), complete: true}
			}
			whole = next
		}
		buf = buf[:copy(buf, buf[whole:])]
		frames.cut(whole)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return cause(ctx, err)
		}
	}
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
