package forward

import (
	"sync"
	"time"
)

// keepAlive is the comment that a client gets while its worker is silent.
const keepAlive = ": keepalive\n\n"

// pulse writes comments to a client whose stream has begun and has been silent
// for Config.KeepAlive. It takes the stream's turn for each, so that a comment
// stands between events, and it touches no timer of the worker's. A nil pulse
// does nothing.
type pulse struct {
	mu    sync.Mutex // the client's connection, and over
	over  bool
	every time.Duration
	timer *time.Timer
}

// newPulse starts the comments of a's stream; nil when they are off.
func (x *exchange) newPulse(a *attempt) *pulse {
	every := x.cfg.KeepAlive
	if every <= 0 {
		return nil
	}
	p := &pulse{every: every}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(every, func() { p.beat(x, a) })
	return p
}

// beat writes one comment.
func (p *pulse) beat(x *exchange, a *attempt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if x.committed {
		if err := x.write([]byte(keepAlive), flush); err != nil {
			a.cancel(err)
			return
		}
	}
	p.timer.Reset(p.every)
}

// lock begins the stream's turn at the client's connection.
func (p *pulse) lock() {
	if p != nil {
		p.mu.Lock()
	}
}

// unlock ends the turn. wrote says that the client has got something.
func (p *pulse) unlock(wrote bool) {
	if p == nil {
		return
	}
	if wrote && !p.over {
		p.timer.Reset(p.every)
	}
	p.mu.Unlock()
}

// stop ends the comments: once it has returned no other is written. It may be
// called more than once.
func (p *pulse) stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}
