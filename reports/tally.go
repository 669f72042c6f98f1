package reports

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// Bounds of what is kept.
const (
	maxPickers = 64               // told apart on one worker; more are the forwarder's own
	maxNews    = 4096             // first tokens and ends between two reports; more are dropped, the oldest first
	recall     = 10 * time.Second // for which ends are told again in full reports
	keepIdle   = 5 * time.Minute  // for which a worker without requests is told of
)

// fade is what a sample of speed leaves of those before it (findings, policy.md §3).
const fade = 0.98

// slower is the position at which a token takes twice the time of the first one:
// attention grows with it.
const slower = 50_000

// Tally counts a forwarder's requests. Make it with [NewTally].
type Tally struct {
	cfg    Config
	source string

	mu      sync.Mutex
	workers map[key]*entry
	seq     uint64
	sent    []Sent
	first   []Ref
	done    []Done
	told    []recalled // ends told already, oldest first
	full    bool       // the next one is to be full
	fresh   chan struct{}
	pickers func() []string
	news    time.Time // when something last changed
}

type recalled struct {
	at time.Time
	Done
}

type key struct {
	id   string
	rank int
}

type entry struct {
	total     Load
	by        map[string]Load
	work      Work
	lastFirst time.Time
	changed   bool
	idle      time.Time // since when nothing is in flight
}

// NewTally returns a tally whose reports come from source, which names this process.
func NewTally(cfg Config, source string) *Tally {
	return &Tally{cfg: cfg, source: source, workers: map[key]*entry{}, fresh: make(chan struct{}, 1), full: true}
}

// SetPickers makes reports name those who listen directly. It is to be called
// before Run.
func (t *Tally) SetPickers(f func() []string) { t.pickers = f }

// Refresh makes the next report a full one, and soon: somebody new listens.
func (t *Tally) Refresh() {
	t.mu.Lock()
	t.full = true
	t.mu.Unlock()
	t.wake()
}

// Know makes reports name a worker, busy or not: a picker has asked for it. Of "" it
// is Refresh.
func (t *Tally) Know(now time.Time, worker string) {
	if worker == "" {
		t.Refresh()
		return
	}
	t.mu.Lock()
	if e := t.entry(key{worker, -1}); e.total.Requests == 0 {
		e.idle, e.changed = now, true
	}
	t.full = true
	t.mu.Unlock()
	t.wake()
}

func (t *Tally) wake() {
	select {
	case t.fresh <- struct{}{}:
	default:
	}
}

// Run hands every report to publish until ctx is done: [Config].Interval after a
// change, and a full one at each heartbeat, [Config].Heartbeat or, while all is quiet,
// [Config].IdleHeartbeat. publish must not keep the report, which is used again, nor
// block for long.
func (t *Tally) Run(ctx context.Context, publish func(*Report)) error {
	beat := time.NewTimer(0)
	defer beat.Stop()
	var due time.Time // of beat
	pause := time.NewTimer(0)
	<-pause.C
	defer pause.Stop()
	var r Report
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			t.Refresh()
			due = time.Now().Add(t.cfg.Heartbeat)
			beat.Reset(t.cfg.Heartbeat)
			continue
		case <-t.fresh:
		}
		now := time.Now()
		if t.Collect(now, &r) {
			publish(&r)
			if next := onGrid(now, r.Beat); r.Full || now.Add(next).Before(due) {
				due = now.Add(next)
				beat.Reset(next)
			}
		}
		pause.Reset(t.cfg.Interval) // what changes meanwhile goes together
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
	}
}

// beatGrid is what heartbeats are aligned to: those of many forwarders then reach a
// picker together, which wakes it once instead of once for each.
const beatGrid = 500 * time.Millisecond

// onGrid shortens a wait from now so that it ends on the grid of the wall clock. A
// short one stays as it is.
func onGrid(now time.Time, wait time.Duration) time.Duration {
	if wait < 4*beatGrid {
		return wait
	}
	end := now.Add(wait)
	return wait - end.Sub(end.Truncate(beatGrid))
}

// beat is how soon the next report comes at the latest, with mu held. Ends are told
// twice, so that the slow beat begins when the last has been.
func (t *Tally) beat(now time.Time) time.Duration {
	if now.Sub(t.news) <= recall || len(t.told) > 0 {
		return t.cfg.Heartbeat
	}
	for _, e := range t.workers {
		if e.total.Requests != 0 {
			return t.cfg.Heartbeat
		}
	}
	return max(t.cfg.Heartbeat, t.cfg.IdleHeartbeat)
}

// Collect fills r with what has changed since the last call, and reports whether
// there is something to tell.
func (t *Tally) Collect(now time.Time, r *Report) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Workers, r.Sent, r.First, r.Done = r.Workers[:0], r.Sent[:0], r.First[:0], r.Done[:0]
	if r.Full = t.full; r.Full {
		t.forgetTold(now)
		for i := range t.told {
			r.Done = append(r.Done, t.told[i].Done)
		}
	}
	for k, e := range t.workers {
		if e.changed {
			t.news = now
		}
		if e.changed || r.Full {
			e.changed = false
			r.Workers = append(r.Workers, Worker{ID: k.id, Rank: k.rank, Total: e.total, ByPicker: maps.Clone(e.by), Work: e.work})
		}
		if e.total.Requests == 0 && now.Sub(e.idle) > keepIdle {
			delete(t.workers, k)
		}
	}
	slices.SortFunc(r.Workers, func(a, b Worker) int {
		if a.ID != b.ID {
			if a.ID < b.ID {
				return -1
			}
			return 1
		}
		return a.Rank - b.Rank
	})
	r.Sent = append(r.Sent, t.sent...)
	r.First = append(r.First, t.first...)
	for i := range t.done {
		r.Done = append(r.Done, t.done[i])
		t.told = append(t.told, recalled{now, t.done[i]})
	}
	if extra := len(t.told) - maxNews; extra > 0 {
		t.told = slices.Delete(t.told, 0, extra)
	}
	t.sent, t.first, t.done, t.full = t.sent[:0], t.first[:0], t.done[:0], false
	if !r.Full && len(r.Workers)+len(r.Sent)+len(r.First)+len(r.Done) == 0 {
		return false
	}
	t.seq++
	r.Source, r.Seq, r.Beat, r.Pickers = t.source, t.seq, t.beat(now), nil
	if t.pickers != nil {
		r.Pickers = t.pickers()
	}
	return true
}

func (t *Tally) forgetTold(now time.Time) {
	n := 0
	for n < len(t.told) && now.Sub(t.told[n].at) > recall {
		n++
	}
	t.told = slices.Delete(t.told, 0, n)
}

// entry returns the counts of a worker, with mu held.
func (t *Tally) entry(k key) *entry {
	e := t.workers[k]
	if e == nil {
		e = &entry{by: map[string]Load{}}
		t.workers[k] = e
	}
	return e
}

// count adds k times l to what picker has on e, with mu held, and returns under
// which name.
func (e *entry) count(picker string, l Load, k int, now time.Time) string {
	if _, known := e.by[picker]; !known && picker != "" && len(e.by) >= maxPickers {
		picker = ""
	}
	e.changed = true
	e.total = e.total.plus(l, k)
	if e.total.Requests == 0 {
		e.idle = now
	}
	if picker == "" {
		return picker
	}
	if have := e.by[picker].plus(l, k); have.IsZero() {
		delete(e.by, picker)
	} else {
		e.by[picker] = have
	}
	return picker
}

// computed counts a sample of speed, with mu held: tokens that the worker has computed since
// the request began, or since it was done with the one before.
func (e *entry) computed(tokens float64, began, now time.Time) {
	if e.lastFirst.After(began) {
		began = e.lastFirst
	}
	e.lastFirst = now
	took := now.Sub(began).Seconds() * 1000
	if tokens <= 0 || took < 0 {
		return
	}
	e.work.Tokens = e.work.Tokens*fade + tokens
	e.work.Millis = e.work.Millis*fade + took
}

// Idle reports whether nothing is in flight and no end is left to tell.
func (t *Tally) Idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.workers {
		if e.total.Requests != 0 {
			return false
		}
	}
	return len(t.done) == 0
}
