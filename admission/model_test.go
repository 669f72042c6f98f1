package admission

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// model is the gate as plainly as it can be said: every step looks at the whole
// queue again.
type model struct {
	limit, depth, pct int
	caps              map[string]int
	queue             []*Request
	running           map[*Request]bool
}

func (m *model) used(match func(*Request) bool) (units int) {
	for r := range m.running {
		if match(r) {
			units += r.Units
		}
	}
	return units
}

func (m *model) count(key string) (n int) {
	for r := range m.running {
		if r.Key == key {
			n++
		}
	}
	return n
}

func (m *model) settle() {
	slices.SortStableFunc(m.queue, func(a, b *Request) int { return b.Priority - a.Priority })
	full := map[string]bool{}
	for i := 0; i < len(m.queue); {
		r := m.queue[i]
		all := m.used(func(*Request) bool { return true })
		own := m.used(func(o *Request) bool { return o.Tenant == r.Tenant })
		if m.limit > 0 && all > 0 && all+r.Units > m.limit {
			return
		}
		switch {
		case full[r.Key], m.limit > 0 && m.pct > 0 && own > 0 && own+r.Units > share(m.limit, m.pct):
			i++
		case m.caps[r.Key] > 0 && m.count(r.Key) >= m.caps[r.Key]:
			full[r.Key] = true
			i++
		default:
			m.running[r] = true
			m.queue = slices.Delete(m.queue, i, i+1)
		}
	}
}

// arrive returns what becomes of r, and who is thrown out for it.
func (m *model) arrive(r *Request) (outcome string, victim *Request) {
	m.queue = append(m.queue, r)
	m.settle()
	if m.running[r] {
		return "runs", nil
	}
	m.queue = slices.DeleteFunc(m.queue, func(o *Request) bool { return o == r })
	if len(m.queue) >= m.depth {
		if len(m.queue) > 0 {
			if last := m.queue[len(m.queue)-1]; last.Priority < 0 && last.Priority < r.Priority {
				victim = last
			}
		}
		if victim == nil {
			return "refused", nil
		}
	}
	own := 0
	for _, o := range m.queue {
		if o.Tenant == r.Tenant {
			own++
		}
	}
	if m.pct > 0 && own >= share(m.depth, m.pct) && (victim == nil || victim.Tenant != r.Tenant) {
		return "refused", nil
	}
	m.queue = slices.DeleteFunc(m.queue, func(o *Request) bool { return o == victim })
	m.queue = append(m.queue, r)
	m.settle()
	return "waits", victim
}

func (m *model) leave(r *Request) {
	m.queue = slices.DeleteFunc(m.queue, func(o *Request) bool { return o == r })
	delete(m.running, r)
	m.settle()
}

// world is a gate and the model of it.
type world struct {
	t    *testing.T
	g    *Gate
	m    *model
	have map[string]int // requests at the workers of a key
	all  []*Request
}

func newWorld(t *testing.T, limit, depth, pct int) *world {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Mode, cfg.MaxOutstanding, cfg.QueueDepth, cfg.TenantSharePct = Enforce, limit, depth, pct
	return &world{
		t: t, g: NewGate(cfg), have: map[string]int{},
		m: &model{limit: limit, depth: depth, pct: pct, caps: map[string]int{}, running: map[*Request]bool{}},
	}
}

func (w *world) arrive(key, tenant string, priority, units int) {
	r := &Request{Key: key, Tenant: tenant, Priority: priority, Units: units}
	r.Pick = func(time.Time) error {
		if c := w.m.caps[key]; c > 0 && w.have[key] >= c {
			return ErrFull
		}
		w.have[key]++
		return nil
	}
	w.g.mu.Lock()
	err := w.g.arrive(time.Now(), r)
	w.g.unlock()
	got := "runs"
	switch {
	case errors.Is(err, errParked):
		got = "waits"
	case err != nil:
		got = "refused"
	}
	want, victim := "refused", (*Request)(nil)
	if w.m.limit == 0 || units <= w.m.limit {
		want, victim = w.m.arrive(r)
	}
	if got != want {
		w.t.Fatalf("a request of %q, %q, priority %d, %d units: %s, the model says %s", key, tenant, priority, units, got, want)
	}
	if victim != nil && victim.state != ended {
		w.t.Fatalf("the sheddable request is %d, want ended", victim.state)
	}
	if got != "refused" {
		w.all = append(w.all, r)
	}
}

// finish ends or cancels the n-th of those that run or wait.
func (w *world) finish(n int) {
	w.all = slices.DeleteFunc(w.all, func(r *Request) bool { return r.state == ended })
	if len(w.all) == 0 {
		return
	}
	i := n % len(w.all)
	r := w.all[i]
	w.all = slices.Delete(w.all, i, i+1)
	if r.state == waiting {
		w.m.leave(r)
		_ = w.g.leave(r, reasonCancelled, context.Canceled)
		return
	}
	w.have[r.Key]--
	pass := Pass{w.g, r, r.gen}
	w.m.leave(r)
	pass.Release()
	pass.Release()
}

func (w *world) configure(limit, depth int) {
	cfg := w.g.cfg
	cfg.MaxOutstanding, cfg.QueueDepth = limit, depth
	w.m.limit, w.m.depth = limit, depth
	w.m.settle()
	if err := w.g.SetConfig(cfg); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) capped(key string, n int) {
	w.m.caps[key] = n
	w.m.settle()
	w.g.Wake()
}

func (w *world) check(step string) {
	w.t.Helper()
	for _, r := range w.all {
		if got, want := r.state == active, w.m.running[r]; got != want && r.state != ended {
			w.t.Fatalf("%s: request %d runs: %v, the model says %v", step, r.seq, got, want)
		}
	}
	if got, want := w.g.used, w.m.used(func(*Request) bool { return true }); got != want {
		w.t.Fatalf("%s: %d units used, the model says %d", step, got, want)
	}
	if got, want := w.g.queue.n, len(w.m.queue); got != want {
		w.t.Fatalf("%s: %d wait, the model says %d", step, got, want)
	}
	at := w.g.queue.first()
	for _, want := range w.m.queue {
		if at != want {
			w.t.Fatalf("%s: the queue is in another order than the model's", step)
		}
		at = w.g.queue.after(at)
	}
}

func (w *world) drain() {
	for len(w.all) > 0 {
		w.finish(0)
	}
	s := w.g.Snapshot()
	if s.Inflight != 0 || s.Units != 0 || s.Queued != 0 || s.QueuedBytes != 0 || s.TenantsActive != 0 || w.g.used != 0 || w.g.waiters.Load() != 0 {
		w.t.Fatalf("left over when all is done: %+v, used %d", s, w.g.used)
	}
}

func (w *world) step(b byte, arg byte) {
	key, tenant := strconv.Itoa(int(arg&1)), strconv.Itoa(int(arg>>1&3))
	switch {
	case b < 120:
		w.arrive(key, tenant, int(arg>>3&3)-1, 1+int(arg>>5))
	case b < 230:
		w.finish(int(arg))
	case b < 242:
		w.configure(int(arg%12), int(arg>>4))
	default:
		w.capped(key, int(arg>>1)%6)
	}
	w.check("step " + strconv.Itoa(int(b)) + "/" + strconv.Itoa(int(arg)))
}

// FuzzTheGateDoesWhatTheModelSays drives both through the same arrivals, ends,
// cancellations, new ceilings and new caps.
func FuzzTheGateDoesWhatTheModelSays(f *testing.F) {
	f.Add([]byte{4, 2, 0}, []byte("aaaaaaaaaabbbbzzzz"))
	f.Add([]byte{3, 5, 50}, []byte{1, 0, 1, 1, 1, 9, 1, 17, 200, 0, 250, 3, 1, 0, 240, 99, 150, 1})
	f.Fuzz(func(t *testing.T, head, steps []byte) {
		if len(head) < 3 || len(steps) > 4096 {
			return
		}
		w := newWorld(t, int(head[0]%12), int(head[1]%16), int(head[2]%101))
		for i := 0; i+1 < len(steps); i += 2 {
			w.step(steps[i], steps[i+1])
		}
		w.drain()
	})
}

func TestThousandsOfRandomStepsAgreeWithTheModel(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, rnd.IntN(12), rnd.IntN(16), []int{0, 30, 100}[seed%3])
		for range 3000 {
			w.step(byte(rnd.IntN(256)), byte(rnd.IntN(256)))
		}
		w.drain()
	}
}

// contract 2C, wake rule: random cancellations, releases and raised ceilings by
// many goroutines. Nobody is left waiting beside a free place (synctest would
// find all asleep), nobody comes before an older request, and all is given back.
func TestNoWakeUpIsLostAndTheOrderIsKeptUnderRandomSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Mode, cfg.MaxOutstanding, cfg.QueueDepth, cfg.QueueWait = Enforce, 3, MaxDepth, time.Hour
		g := NewGate(cfg)
		var last uint64 // guarded by the gate's lock
		var wg sync.WaitGroup
		for i := range uint64(64) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(i, 2))
				for range 60 {
					r := &Request{Units: 1}
					r.Pick = func(time.Time) error {
						if r.seq < last {
							t.Errorf("request %d goes after %d", r.seq, last)
						}
						last = r.seq
						return nil
					}
					ctx, cancel := context.WithCancel(t.Context())
					stop := time.AfterFunc(time.Duration(rnd.IntN(200))*time.Millisecond, cancel)
					if pass, err := g.Enter(ctx, r); err == nil {
						time.Sleep(time.Duration(rnd.IntN(5)) * time.Millisecond)
						pass.Release()
					}
					stop.Stop()
					cancel()
					if rnd.IntN(20) == 0 {
						next := cfg
						next.MaxOutstanding = 1 + rnd.IntN(8)
						if err := g.SetConfig(next); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		if s := g.Snapshot(); s.Inflight != 0 || s.Queued != 0 || g.used != 0 || g.waiters.Load() != 0 {
			t.Errorf("left over: %+v, used %d", s, g.used)
		}
	})
}

// The same with workers' caps, where only Wake tells that there is room.
func TestAWakeFromThePickerIsNeverLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Mode, cfg.QueueDepth, cfg.QueueWait = Enforce, 1000, time.Hour
		g := NewGate(cfg)
		var mu sync.Mutex
		have := 0
		var wg sync.WaitGroup
		for i := range uint64(48) {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(i, 3))
				for range 100 {
					pass, err := g.Enter(t.Context(), &Request{Units: 1, Pick: func(time.Time) error {
						mu.Lock()
						defer mu.Unlock()
						if have == 4 {
							return ErrFull
						}
						have++
						return nil
					}})
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(rnd.IntN(3)) * time.Millisecond)
					mu.Lock()
					have--
					mu.Unlock()
					g.Wake()
					pass.Release()
				}
			})
		}
		wg.Wait()
		if s := g.Snapshot(); s.Inflight != 0 || s.Queued != 0 {
			t.Errorf("left over: %+v", s)
		}
	})
}

// contract 2C, fc_mode: what observe would have refused is what enforce refuses,
// on one script of arrivals and ends.
func TestFcModeObserveCountsWhatEnforceRefuses(t *testing.T) {
	type event struct {
		after    time.Duration
		arrive   bool
		priority int
		units    int
	}
	run := func(mode Mode, script []event) (refused, timeouts int) {
		synctest.Test(t, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Mode, cfg.MaxOutstanding, cfg.QueueDepth, cfg.QueueWait = mode, 4, 3, 400*time.Millisecond
			g := NewGate(cfg)
			var all []*Request
			var wg sync.WaitGroup
			for _, e := range script {
				time.Sleep(e.after)
				g.Tick(time.Now())
				if e.arrive {
					r := &Request{Units: e.units, Priority: e.priority, Pick: func(time.Time) error { return nil }}
					all = append(all, r)
					wg.Go(func() { _, _ = g.Enter(t.Context(), r) })
				} else if i := slices.IndexFunc(all, func(r *Request) bool { return r.state == active }); i >= 0 {
					Pass{g, all[i], all[i].gen}.Release()
					all = slices.Delete(all, i, i+1)
				}
				synctest.Wait()
			}
			g.Drain()
			wg.Wait()
			refused = int(count(g, reasonShed) + count(g, reasonQueueFull) + count(g, reasonWouldShed))
			timeouts = int(count(g, reasonQueueTimeout) + count(g, reasonWouldTimeout))
			if mode == Observe && count(g, reasonShed)+count(g, reasonQueueFull) > 0 {
				t.Error("observe refused something")
			}
		})
		return refused, timeouts
	}
	total := 0
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		var script []event
		for range 300 {
			script = append(script, event{
				after:  time.Duration(rnd.IntN(60))*time.Millisecond + time.Duration(1+rnd.IntN(900))*time.Microsecond,
				arrive: rnd.IntN(5) < 3, priority: rnd.IntN(3) - 1, units: 1 + rnd.IntN(2),
			})
		}
		seen, late := run(Observe, script)
		did, ended := run(Enforce, script)
		if seen != did || late != ended {
			t.Errorf("seed %d: observe would have refused %d and let %d time out, enforce did %d and %d", seed, seen, late, did, ended)
		}
		total += did
	}
	if total < 100 {
		t.Errorf("%d refusals in all: the scripts prove nothing", total)
	}
}
