package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// paced are engines whose answers take long enough to be interrupted.
func paced() []string {
	return []string{"--prefill-tokens-per-s", "20000", "--decode-ms-per-step", "20"}
}

// load is a run of generated conversations that a test follows.
type load struct {
	t       *testing.T
	results []traffic.Result
	done    chan struct{}

	mu      sync.Mutex
	cond    *sync.Cond
	sent    int
	flowing map[string]int // streams with text and no end, per worker
	over    bool
}

// startLoad sends requests over the given time.
func startLoad(t *testing.T, s *stack.Stack, requests int, over time.Duration) *load {
	t.Helper()
	cfg := traffic.DefaultGenerateConfig()
	cfg.Requests, cfg.Over, cfg.Hurry, cfg.MaxTurns = requests, over, 300, 4
	plan, err := traffic.Generate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, done: make(chan struct{}), flowing: make(map[string]int)}
	l.cond = sync.NewCond(&l.mu)
	driver := traffic.Driver{URL: s.URL, Model: stack.DefaultModel, Patience: 20 * time.Second, Observer: traffic.Observer{
		Sent: func(*traffic.Request) { l.change(func() { l.sent++ }) },
		First: func(r *traffic.Result) {
			l.change(func() { l.flowing[r.Worker]++ })
		},
		Ended: func(r *traffic.Result) {
			if r.Texts > 0 {
				l.change(func() { l.flowing[r.Worker]-- })
			}
		},
	}}
	ctx := t.Context()
	go func() {
		defer close(l.done)
		l.results = driver.Run(ctx, plan)
		l.change(func() { l.over = true })
	}()
	return l
}

func (l *load) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.cond.Broadcast()
}

// until waits for a moment of the run. A run that ends without it fails the test.
func (l *load) until(when func() bool) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !when() {
		if l.over {
			l.t.Fatal("the load ended before what the test waits for")
		}
		l.cond.Wait()
	}
}

// busiest waits until, after n requests, some worker has at least two streams
// flowing, and returns it.
func (l *load) busiest(n int) string {
	l.t.Helper()
	found := ""
	l.until(func() bool {
		for worker, flowing := range l.flowing {
			if l.sent >= n && flowing >= 2 {
				found = worker
			}
		}
		return found != ""
	})
	return found
}

// finish waits for the end and returns the results.
func (l *load) finish() []traffic.Result {
	<-l.done
	return l.results
}

// describe writes what is wrong about a result.
func describe(r *traffic.Result) string {
	return fmt.Sprintf("%s at %q: status %d, %d texts, %d error events, %d [DONE], %d after the end, finish %v, %v: %s",
		r.Request.ID, r.Worker, r.Status, r.Texts, r.Errors, r.Dones, r.After, r.Finish, r.Err, r.Detail)
}

// deliveredOnce checks on the living engines' receipts that each whole answer
// was made once, and that no interrupted one was made anywhere else.
func deliveredOnce(t *testing.T, s *stack.Stack, results []traffic.Result, lost string) {
	t.Helper()
	for i := range results {
		r := &results[i]
		complete := 0
		for _, rc := range receipts(t, s, r.Request.ID) {
			if rc.Outcome == "complete" {
				complete++
				if rc.WorkerID != r.Worker {
					t.Errorf("%s: the answer names %s, %s made it", r.Request.ID, r.Worker, rc.WorkerID)
				}
			}
		}
		want := 1
		if r.Outcome() != traffic.OK || r.Worker == lost {
			want = 0
		}
		if complete != want {
			t.Errorf("%s: %d complete receipts, want %d: %s", r.Request.ID, complete, want, describe(r))
		}
	}
}

// TestAKilledEngineCostsOnlyItsOpenStreams kills an engine under load. Its
// forwarder stays, and its registration stays for the length of the lease.
func TestAKilledEngineCostsOnlyItsOpenStreams(t *testing.T) {
	t.Parallel()
	for _, bootstrap := range bootstraps() {
		t.Run(bootstrap.String(), func(t *testing.T) {
			t.Parallel()
			killUnderLoad(t, startFleet(t, stack.Config{
				Bootstrap: bootstrap, Workers: stack.MixedWorkers(3, paced()...), Policy: "kv-aware", OverlapWeight: 20,
			}))
		})
	}
}

func killUnderLoad(t *testing.T, s *stack.Stack) {
	t.Helper()
	l := startLoad(t, s, 90, 5*time.Second)
	victim := l.busiest(40)
	killed := time.Now()
	workerOf(t, s, victim).Engine.Kill()
	results := l.finish()

	interrupted, open, after := 0, 0, 0
	for i := range results {
		r := &results[i]
		flowed := r.Worker == victim && r.Sent.Before(killed) && r.End.After(killed) && r.Texts > 0
		if flowed {
			open++
		}
		if r.Sent.After(killed) {
			after++
		}
		switch r.Outcome() {
		case traffic.OK:
		case traffic.Interrupted:
			interrupted++
			if !flowed {
				t.Errorf("interrupted without having flowed from the killed engine: %s", describe(r))
			}
		case traffic.Failed:
			t.Errorf("failed: %s", describe(r))
		}
	}
	if interrupted == 0 || interrupted > open || after < 10 {
		t.Errorf("%d interrupted of %d open streams; %d requests after the kill", interrupted, open, after)
	}
	deliveredOnce(t, s, results, victim)
}

// TestARollingRestartOfTheEPPIsNotNoticed restarts two replicas one after the
// other under load.
func TestARollingRestartOfTheEPPIsNotNoticed(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(3, paced()...), Policy: "kv-aware", OverlapWeight: 20,
		EPPs: 2, EPPArgs: []string{"--drain-delay", "3"}, // Envoy asks for health every second
	})
	l := startLoad(t, s, 240, 18*time.Second)
	for i, e := range s.EPPs {
		l.until(func() bool { return l.sent >= 15 })
		if err := e.Stop(30 * time.Second); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
		if err := e.Process().ExitError(); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if err := e.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if err := s.WaitGateway(ctx, len(s.EPPs)); err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	select {
	case <-l.done:
		t.Error("the load ended before the restarts")
	default:
	}
	results := l.finish()
	for i := range results {
		if results[i].Outcome() != traffic.OK {
			t.Errorf("%s", describe(&results[i]))
		}
	}
	deliveredOnce(t, s, results, "")
}

// TestAKilledEPPComesBackToItsFleet kills the only EPP under load: requests fail
// meanwhile, but none hangs, none is answered wrongly, and all is well again
// when it is back.
func TestAKilledEPPComesBackToItsFleet(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(2, paced()...), Policy: "kv-aware", OverlapWeight: 20})
	l := startLoad(t, s, 80, 6*time.Second)
	l.until(func() bool { return l.sent >= 25 })
	killed := time.Now()
	s.EPPs[0].Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.EPPs[0].Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitGateway(ctx, 1); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	results := l.finish()
	again := 0
	for i := range results {
		r := &results[i]
		whole := r.Outcome() == traffic.OK
		switch {
		case r.Dones > 0 && !whole:
			t.Errorf("a broken answer claims to be whole: %s", describe(r))
		case r.Sent.After(back) || r.End.Before(killed):
			if !whole {
				t.Errorf("while the EPP was there: %s", describe(r))
			}
			if r.Sent.After(back) {
				again++
			}
		case !whole && r.Status == http.StatusOK && r.Texts == 0:
			t.Errorf("200 and nothing: %s", describe(r))
		}
	}
	if again < 10 {
		t.Errorf("only %d requests after the restart", again)
	}
	// What the caches hold is known again: from the publishers' replay.
	prompt := words(60, 500)
	parse(t, chat(t, s, id(t, "1"), prompt, nil))
	parse(t, chat(t, s, id(t, "2"), prompt, nil))
	first, second := theReceipt(t, s, id(t, "1")), theReceipt(t, s, id(t, "2"))
	if first.WorkerID != second.WorkerID || second.CachedTokens == 0 {
		t.Errorf("the second time: %d tokens cached on %s, the first was on %s", second.CachedTokens, second.WorkerID, first.WorkerID)
	}
}

// TestAnEtcdThatIsDownIsWaitedForAndThenNotMissed starts a fleet without its
// etcd, and takes it away again later.
func TestAnEtcdThatIsDownIsWaitedForAndThenNotMissed(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(2, fast()...), EtcdDown: true, Lease: 5 * time.Second})
	eventually(t, "a refusal", func(ctx context.Context) error {
		_, err := stack.Get(ctx, http.DefaultClient, s.EPPs[0].Admin+"/health")
		return err
	})
	if _, err := stack.Get(t.Context(), http.DefaultClient, s.EPPs[0].Admin+"/ready"); err == nil {
		t.Error("the EPP calls itself ready without a fleet")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	if err := s.Etcd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	parse(t, chat(t, s, id(t, "up"), "hello", nil))

	s.Etcd.Stop()
	eventually(t, "the EPP to notice", func(ctx context.Context) error {
		m, err := s.Metrics(ctx, s.EPPs[0].Admin)
		if err != nil {
			return err
		}
		if m.Sum("pointsman_fleet_connected", nil) != 0 {
			return errNotYet
		}
		return nil
	})
	for i := range 10 {
		parse(t, chat(t, s, id(t, fmt.Sprintf("down-%d", i)), words(i, 50), nil))
	}
	m, err := s.Metrics(ctx, s.EPPs[0].Admin)
	if err != nil || m.Sum("infera_active_workers", nil) != 2 || m.Sum("pointsman_fleet_staleness_seconds", nil) <= 0 {
		t.Errorf("without etcd: %v workers, stale for %v s, %v", m.Sum("infera_active_workers", nil), m.Sum("pointsman_fleet_staleness_seconds", nil), err)
	}

	if err := s.Etcd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	s.Workers[0].Engine.Kill() // and now its lease runs out, if the news of it come through
	if err := s.WaitFleet(ctx, "epp-0", s.EPPs[0].Admin, 1); err != nil {
		t.Fatal(err)
	}
	parse(t, chat(t, s, id(t, "last"), "hello", nil))
}
