package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"
)

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
