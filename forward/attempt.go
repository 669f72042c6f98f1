package forward

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

// answerTime bounds the reading of an answer that may be thrown away for an
// alternate's: a worker that answers 500 and hangs must not hold up the retry.
const answerTime = time.Second

// attempt is one pick of a request, and what is sent because of it: one leg, or
// the two of a pair.
type attempt struct {
	x        *exchange
	picked   picker.Decision
	decision *picker.Decision // picked, or the alternate for its decode worker
	begin    func() error     // called when the worker has produced something: its error ends the attempt; may be nil
	life     life             // its context
	above    Ending           // of the request's
	waits    waits
	last     *try    // of the leg that is relayed to the client; nil before it was sent
	sent     Request // of a request that is no pair's
	to       sending // likewise
	status   int     // of the worker's response; 0 before it

	// handed says that a pair's prefill worker has answered well: a failure of the
	// decode leg before its first token is then the handoff's.
	handed atomic.Bool

	// Guarded by Server.pending: see there.
	after, before *attempt
	listed        bool
	awaited       *fleet.Worker // whose leaving the fleet ends the attempt
	leave         func() bool
	spared        bool // it was seen to drain
	departed      bool // the attempt was ended because it has left
}

// try sends the request to the worker that was picked and relays what it answers. It
// returns the decision to the picker whatever happens.
func (a *attempt) try() (err error) {
	x := a.x
	outcome := breaker.Neutral
	a.life.follow(x.ctx, &a.above)
	defer func() {
		a.waits.stop(x.s)
		a.above.Stop()
		a.cancel(nil)
		if outcome == breaker.Success {
			a.decision.Answered(x.answered())
		}
		a.decision.Done(time.Now(), outcome)
	}()
	a.waits.prepare(a)
	x.current = a
	err = a.run()
	x.s.pending.settle(a)
	why := a.reason(err)
	if a.last != nil { // else the worker has not been asked
		outcome = why.outcome()
	}
	x.end(a.last, why, err)
	return err
}

// cancel ends the attempt with cause, if nothing has before; nil is [context.Canceled].
func (a *attempt) cancel(cause error) { a.life.end(cause) }

// reason says how the leg that is relayed has ended.
func (a *attempt) reason(err error) reason {
	begun := !a.x.firstAt.IsZero()
	switch {
	case atPrefill(err):
		return tryAborted
	case err == nil:
		return reasonOfStatus(a.status, begun)
	}
	why := reasonOf(err, begun)
	if a.begin != nil && !begun && transferable(why) && (a.handed.Load() || saysTransfer(err)) {
		return tryTransfer
	}
	return why
}

// saysTransfer reports whether the engine blames the handoff itself: it may fail
// before the prefill leg has been answered, which waits for the cache to be taken.
// The words are SGLang's and vLLM's.
func saysTransfer(err error) bool {
	var ans *answer
	if !errors.As(err, &ans) {
		return false
	}
	for _, word := range [...]string{"KVTransferError", "transfer failed", "kv_load", "KV load"} {
		if bytes.Contains(ans.body, []byte(word)) {
			return true
		}
	}
	return false
}

// transferable reports whether a decode leg may have ended so because the KV
// cache did not come over: the worker was reached, and it or its silence ended
// the leg (failover 2A, pair memory).
func transferable(why reason) bool {
	switch why {
	case tryReset, try5xx, tryErrorEvent, tryIdle, tryFirstToken, tryCut:
		return true
	}
	return false
}

func (a *attempt) run() error {
	x, d := a.x, a.decision
	if d.Prefill != nil {
		return a.runPair()
	}
	req := &a.sent
	req.ID, req.Method, req.Target, req.Header = x.id, x.r.Method, x.target, x.outHeader // of an attempt, which is new
	setRank(req.Header, d.Rank)
	if x.body != nil {
		req.Body = x.retained(d.Worker, *x.body)
	}
	if x.mayRepeat(errDeparted, false) {
		a.await(d.Worker, legMixed, nil)
	}
	a.to.leg, a.to.worker, a.to.affinity, a.to.timed = legMixed, d.Worker, hasAffinity(d), a
	return a.relay(&a.to, req)
}

// setRank tells the engine which of its ranks was picked; -1 for none.
func setRank(h http.Header, rank int) {
	if rank < 0 {
		delete(h, headerRank)
		return
	}
	h[headerRank] = []string{strconv.Itoa(rank)}
}

// hasAffinity reports whether d's workers were picked for what they hold.
func hasAffinity(d *picker.Decision) bool { return d.Affinity() }

// relay sends req and what the worker answers to the client.
func (a *attempt) relay(to *sending, req *Request) error {
	x := a.x
	resp, t, err := x.send(&a.life, to, req)
	if err != nil {
		return a.cause(err)
	}
	defer func() { _ = resp.Body.Close() }()
	t.progress.Reach(StageHead)
	a.status = resp.Status
	if redirects(resp.Status) {
		return &Error{Stage: StageHead, Err: fmt.Errorf("a redirect (%d): %w", resp.Status, ErrProtocol)}
	}
	if x.identity() {
		if err := plain(resp); err != nil {
			return err
		}
	}
	switch {
	case resp.Status >= 500 || resp.Status == http.StatusTooManyRequests:
		return a.keep(resp)
	case isStream(resp):
		return x.relayStream(a, resp)
	}
	x.flight.Whole()
	return x.relayBody(a, resp)
}

// redirects reports whether a worker's answer sends the client elsewhere. It is not
// followed, nor passed on: no engine has a reason for it, and where it leads may be
// the inside of the fleet (failover.md §5, S3).
func redirects(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// read reads from the worker under the idle timer.
func (a *attempt) read(body io.Reader, p []byte) (int, error) {
	a.waits.reading()
	n, err := body.Read(p)
	return n, a.rested(err)
}

// rested stops the idle timer behind a read, and returns what its error means.
func (a *attempt) rested(err error) error {
	a.waits.rest() // the client's slowness is not the worker's
	if err != nil && !errors.Is(err, io.EOF) {
		err = a.cause(err)
	}
	return err
}

// cause returns why the attempt was canceled, or else err.
func (a *attempt) cause(err error) error {
	switch cause := a.life.Err(); {
	case cause == nil:
		return err
	case errors.Is(cause, context.Canceled):
		return errClientGone
	default:
		return cause
	}
}

// keep reads a worker's failure to the end, within answerTime and smallBody.
func (a *attempt) keep(resp *Response) error {
	ans := &answer{status: resp.Status, header: resp.Header, down: resp.Down}
	late := time.AfterFunc(answerTime, func() { a.cancel(errIdle) })
	defer late.Stop()
	buf := make([]byte, 0, 512)
	for len(buf) < smallBody {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			ans.complete = errors.Is(err, io.EOF)
			break
		}
	}
	if why := context.Cause(a.x.ctx); why != nil {
		a.cancel(why) // which may not have come here yet
		return a.cause(why)
	}
	ans.body = buf
	return ans
}

func statusLabel(status int) string {
	switch {
	case status < 400:
		return outcomeOK
	case status < 500:
		return outcome4xx
	}
	return outcome5xx
}
