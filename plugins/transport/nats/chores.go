package nats

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/wire"
)

// Cancelations (infera.md §3.4).
const (
	cancelTimes = 3
	cancelGap   = time.Second
	cancelLife  = time.Minute // a cancelation that the broker could not take by then is given up
	mostCancels = 1 << 16     // waiting at once; the oldest go first
	mostForgets = 1 << 12
)

// chores is what is left to do when an exchange has ended: cancelations are
// repeated, and messages that must not run are taken out of the request stream.
type chores struct {
	wake chan struct{}

	mu      sync.Mutex
	cancels []cancelation
	forgets []stored
}

// cancelation tells a worker to end a request.
type cancelation struct {
	worker, inbox string
	left          int
	at, born      time.Time
}

// stored is a message in the request stream.
type stored struct {
	worker  string
	seq     uint64
	certain bool // delete it whoever the worker is: the request was given up
}

// cancel sends a cancelation now and leaves the others to run.
func (c *chores) cancel(t *Transport, worker, inbox string) {
	now := time.Now()
	job := cancelation{worker: worker, inbox: inbox, left: cancelTimes, at: now, born: now}
	t.metrics.cancels.Inc()
	if job.send(t) {
		job.at = now.Add(cancelGap)
	}
	c.mu.Lock()
	c.cancels = append(c.cancels, job)
	if n := len(c.cancels) - mostCancels; n > 0 {
		c.cancels = c.cancels[n:]
	}
	c.mu.Unlock()
	c.poke()
}

// send publishes the cancelation; false when there is no connection.
func (j *cancelation) send(t *Transport) bool {
	l := t.link.Load()
	if l == nil || l.nc.Publish(wire.CancelSubject(j.worker), []byte(j.inbox)) != nil {
		return false
	}
	j.left--
	return true
}

// forgetMessage takes a message out of the request stream: at once when the
// request was given up, else only if the worker does not read from the stream. A
// worker that does has acknowledged it; for one that does not it would stay
// there, and run when the worker comes back with the throttle on (N5).
func (c *chores) forgetMessage(t *Transport, worker string, seq uint64, certain bool) {
	if l := t.link.Load(); certain && l != nil {
		l.drop(seq) // before the cancelation, which a worker ignores until it has the request
		return
	}
	c.mu.Lock()
	if len(c.forgets) < mostForgets {
		c.forgets = append(c.forgets, stored{worker: worker, seq: seq, certain: certain})
	}
	c.mu.Unlock()
	c.poke()
}

// drop deletes a message of the request stream. Whether it was there does not
// matter.
func (l *link) drop(seq uint64) {
	_ = l.nc.PublishRequest("$JS.API.STREAM.MSG.DELETE."+wire.RequestStream, l.prefix+"_",
		[]byte(`{"seq":`+strconv.FormatUint(seq, 10)+`,"no_erase":true}`))
}

func (c *chores) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run does the chores until ctx is done.
func (c *chores) run(ctx context.Context, t *Transport) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	sweep := time.NewTicker(30 * time.Second)
	defer sweep.Stop()
	for {
		timer.Reset(c.due(ctx, t))
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
		case now := <-sweep.C:
			t.rooms.sweep(now)
		}
	}
}

// due does what is to be done now and returns how long there is nothing to do.
func (c *chores) due(ctx context.Context, t *Transport) time.Duration {
	c.forgetAll(ctx, t)
	now := time.Now()
	c.mu.Lock()
	var jobs, later []cancelation
	for _, j := range c.cancels {
		if j.at.After(now) {
			later = append(later, j)
		} else {
			jobs = append(jobs, j)
		}
	}
	c.cancels = later
	c.mu.Unlock()
	var again []cancelation
	for _, j := range jobs {
		j.at = now.Add(cancelGap)
		if !j.send(t) {
			j.at = now.Add(cancelGap / 4)
		}
		if j.left > 0 && now.Sub(j.born) < cancelLife {
			again = append(again, j)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancels = append(c.cancels, again...)
	if len(c.cancels) == 0 {
		return never
	}
	next := c.cancels[0].at
	for _, j := range c.cancels {
		if j.at.Before(next) {
			next = j.at
		}
	}
	return max(time.Until(next), time.Millisecond)
}

// flush sends every cancelation that is waiting once more: the process ends.
func (c *chores) flush(t *Transport) {
	c.mu.Lock()
	jobs := c.cancels
	c.cancels = nil
	c.mu.Unlock()
	for _, j := range jobs {
		j.send(t)
	}
}

// forgetAll takes messages out of the stream, as far as their workers do not
// read from it.
func (c *chores) forgetAll(ctx context.Context, t *Transport) {
	l := t.link.Load()
	if l == nil {
		return
	}
	c.mu.Lock()
	jobs := c.forgets
	c.forgets = nil
	c.mu.Unlock()
	reads := map[string]bool{}
	for _, j := range jobs {
		known, seen := reads[j.worker]
		if !j.certain && !seen {
			_, err := backlog(ctx, l.nc, j.worker)
			known = !errors.Is(err, errNoConsumer)
			reads[j.worker] = known
			if err != nil && known && !errors.Is(err, nats.ErrConnectionClosed) {
				t.log.LogAttrs(ctx, slog.LevelDebug, "request consumer not read", slog.String("worker_id", j.worker), slog.Any("error", err))
			}
		}
		if j.certain || !known {
			l.drop(j.seq)
		}
	}
}
