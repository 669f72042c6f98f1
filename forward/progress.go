package forward

import (
	"sync/atomic"
	"time"
)

// Progress is where a [Transport] tells how far a request has got. The forwarder
// runs its timers by it: a wait for a connection is the transport's own and must
// not eat into the time that the worker has to answer.
//
// A transport that tells nothing is timed as if the request had been sent at
// once. Reach may be called by any goroutine; a nil Progress ignores it.
type Progress struct {
	start time.Time                // of the request
	at    [stageCount]atomic.Int64 // nanoseconds since start, plus one; 0 when not reached
	timed *attempt                 // whose timers follow; nil for none
}

const stageCount = int(StageBody) + 1

// Reach notes that the request is in stage s from now on: StageDial when a
// connection is being made, StageWrite when there is one, StageDispatched when
// all has been written.
func (p *Progress) Reach(s Stage) {
	if p == nil || int(s) >= stageCount {
		return
	}
	since := time.Since(p.start)
	p.at[s].Store(int64(since) + 1)
	if p.timed != nil {
		p.timed.reached(s, since)
	}
}

// since returns the time from the request's start to when s was reached; false
// when it was not.
func (p *Progress) since(s Stage) (time.Duration, bool) {
	n := p.at[s].Load()
	return time.Duration(n - 1), n > 0
}
