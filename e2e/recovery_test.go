package e2e

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// spread sends n requests, a few at a time, and returns how many receipts each
// worker has of those that succeeded, and how many did not.
func spread(t *testing.T, s *stack.Stack, name string, n int) (got map[string]int, failed int) {
	t.Helper()
	const atOnce = 4
	answers := make([]answer, n)
	var wg sync.WaitGroup
	gate := make(chan struct{}, atOnce)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			answers[i] = chat(t, s, id(t, fmt.Sprint(name, i)), words(1000+i, 20), nil)
		})
	}
	wg.Wait()
	got = map[string]int{}
	for i := range answers {
		if answers[i].status != http.StatusOK {
			failed++
			continue
		}
		got[answers[i].header.Get(traffic.WorkerHeader)]++
	}
	return got, failed
}

// even fails unless each of the workers has its share of got, give or take 20 %.
func even(t *testing.T, when string, s *stack.Stack, got map[string]int, n int) {
	t.Helper()
	share := float64(n) / float64(len(s.Workers))
	t.Logf("%s: of %d requests %v", when, n, got)
	for _, w := range s.Workers {
		if part := float64(got[w.ID]); part < 0.8*share || part > 1.2*share {
			t.Errorf("%s: %s has %v of %d requests, an even share is %.0f: %v", when, w.ID, part, n, share, got)
		}
	}
}

// shortCooldown are settings by which a circuit can be seen to open and close
// within seconds.
func shortCooldown() []string {
	return []string{"--breaker-cooldown-s", "1", "--breaker-max-cooldown-s", "4"}
}

// TestAHealedWorkerGetsItsShareAgain looks five seconds after a failing worker
// was healed, and with RECOVERY_LONG set (make test-recovery) two minutes after.
func TestAHealedWorkerGetsItsShareAgain(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(3, fast()...), Policy: "round-robin", EPPArgs: shortCooldown(), ForwarderArgs: shortCooldown(),
	})
	const n = 60
	got, failed := spread(t, s, "before", n)
	if even(t, "before", s, got, n); failed > 0 {
		t.Errorf("%d requests failed before anything did", failed)
	}
	ill := s.Workers[1]
	setFault(t, ill, "status:500")
	if got, failed = spread(t, s, "ill", n); failed > 0 || got[ill.ID] > 0 {
		t.Errorf("with one worker answering 500: %d requests failed, %v", failed, got)
	}
	setFault(t, ill, "ok")
	healed := time.Now()
	windows := []time.Duration{5 * time.Second}
	if os.Getenv("RECOVERY_LONG") != "" {
		windows = append(windows, 2*time.Minute)
	}
	for _, w := range windows {
		// Requests go on meanwhile: without them there is no probe.
		for k := 0; time.Since(healed) < w; k++ {
			chat(t, s, id(t, fmt.Sprint("between", w, "-", k)), words(k, 10), nil)
		}
		got, failed = spread(t, s, fmt.Sprint("after", w, "-"), n)
		if even(t, fmt.Sprint(w, " after healing"), s, got, n); failed > 0 {
			t.Errorf("%v after healing %d requests failed", w, failed)
		}
	}
}

// trips returns how often circuits of the worker opened in the eyes of the EPP.
func trips(t *testing.T, s *stack.Stack, workerID string) float64 {
	t.Helper()
	m, err := s.Metrics(t.Context(), s.EPPs[0].Admin)
	if err != nil {
		t.Fatal(err)
	}
	return m.Sum("infera_router_worker_breaker_trips_total", map[string]string{"worker_id": workerID})
}

// TestAWorkerThatFlapsTripsRarelyAndIsNotStampededOnReturn lets a worker fail for
// three seconds and work for three, twice: each time its circuit opens once and
// again for each failed probe, at most once per doubling of the cooldown; clients
// see nothing, and on its return it gets no more than its share.
func TestAWorkerThatFlapsTripsRarelyAndIsNotStampededOnReturn(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(3, fast()...), Policy: "round-robin", EPPArgs: shortCooldown(), ForwarderArgs: shortCooldown(),
	})
	flapping, failed := s.Workers[0], 0
	phase := func(name, mode string) (mine, all int) {
		setFault(t, flapping, mode)
		for start, k := time.Now(), 0; time.Since(start) < 3*time.Second; k++ {
			got, bad := spread(t, s, fmt.Sprint(name, k, "-"), 8)
			failed += bad
			for worker, n := range got {
				all += n
				if worker == flapping.ID {
					mine += n
				}
			}
		}
		return mine, all
	}
	for round := range 2 {
		before := trips(t, s, flapping.ID)
		phase(fmt.Sprint("down", round), "status:500")
		// One trip, and the probes after 1 and 3 seconds.
		if n := trips(t, s, flapping.ID) - before; n < 1 || n > 3 {
			t.Errorf("round %d: %v trips within three seconds of failing", round, n)
		}
		mine, all := phase(fmt.Sprint("up", round), "ok")
		if float64(mine) > 1.2*float64(all)/3 {
			t.Errorf("round %d: %d of %d requests went to the worker that came back", round, mine, all)
		}
	}
	if failed > 0 {
		t.Errorf("clients saw %d failures", failed)
	}
}

// cutPair makes KV transfers from one prefill worker to one decode worker fail.
func cutPair(t *testing.T, prefill, decode *stack.Worker, broken bool) {
	t.Helper()
	host, _, _ := strings.Cut(prefill.ID, ":")
	body := fmt.Sprintf(`{"host": %q, "broken": %v}`, host, broken)
	if a := send(t, http.DefaultClient, http.MethodPost, decode.Control+"/control/pair", bytes.NewReader([]byte(body)), nil); a.status != http.StatusOK {
		t.Fatalf("cut %s from %s: %d %s", decode.ID, prefill.ID, a.status, a.body)
	}
}

// TestABrokenPairIsLeftOutAndItsWorkersGoOnWithOthers breaks the transfer between
// one prefill and one decode worker: these two meet no more, the other three pairs
// serve, and neither worker is blamed.
func TestABrokenPairIsLeftOutAndItsWorkersGoOnWithOthers(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.PairedWorkers(2, 2, fast()...), Policy: "round-robin"})
	p1, d1 := s.Workers[0], s.Workers[2]
	cutPair(t, p1, d1, true)
	failed := 0
	for i := range 24 { // enough for the pair's circuit
		if a := chat(t, s, id(t, fmt.Sprint("first", i)), words(i, 20), nil); a.status != http.StatusOK {
			failed++
		}
	}
	if failed > 2 {
		t.Errorf("%d of 24 requests failed before the pair was left out", failed)
	}
	pairs := map[string]int{}
	for i := range 40 {
		requestID := id(t, fmt.Sprint("then", i))
		if a := chat(t, s, requestID, words(500+i, 20), nil); a.status != http.StatusOK {
			t.Errorf("request %d: %d %.200s", i, a.status, a.body)
			continue
		}
		prefill, decode := legsOf(t, s, requestID)
		for _, p := range prefill {
			for _, d := range decode {
				pairs[p.WorkerID+" "+d.WorkerID]++
			}
		}
	}
	met := strings.Join(slices.Sorted(maps.Keys(pairs)), ", ")
	if pairs[p1.ID+" "+d1.ID] > 0 {
		t.Errorf("the broken pair met: %v", pairs)
	}
	m, err := s.Metrics(t.Context(), s.EPPs[0].Admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Workers {
		if !strings.Contains(met, w.ID) {
			t.Errorf("%s serves in no pair: %s", w.ID, met)
		}
		if state := m.Sum("infera_router_worker_breaker_state", map[string]string{"worker_id": w.ID}); state != 0 {
			t.Errorf("the circuit of %s is in state %v", w.ID, state)
		}
	}
}

// TestARollingRestartOfWorkersUnderFiftyStreamsIsNotNoticed ends one worker after
// the other in order, each with its forwarder, as a Pod ends, and starts it again.
func TestARollingRestartOfWorkersUnderFiftyStreamsIsNotNoticed(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(3, paced()...), Policy: "round-robin",
		ForwarderArgs: []string{"--drain-delay", "2", "--drain-timeout", "20"},
	})
	const streams = 50
	ctx, stop := context.WithCancel(t.Context())
	bad := make([][]string, streams)
	sent := make([]int, streams)
	var clients sync.WaitGroup
	for i := range streams {
		clients.Go(func() {
			for ; ctx.Err() == nil; sent[i]++ {
				requestID := id(t, fmt.Sprintf("%d-%d", i, sent[i]))
				body := chatBody(t, words(i, 10), map[string]any{"stream": true, "max_tokens": 40, "ignore_eos": true})
				a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": requestID})
				if a.status != http.StatusOK || !bytes.HasSuffix(a.body, []byte("data: [DONE]\n\n")) {
					bad[i] = append(bad[i], fmt.Sprintf("%s: %d %.200s", requestID, a.status, a.body[max(0, len(a.body)-200):]))
				}
			}
		})
	}
	for _, w := range s.Workers {
		var both sync.WaitGroup
		for _, part := range []*stack.Service{&w.Engine, &w.Forwarder} {
			both.Go(func() {
				if err := part.Stop(40 * time.Second); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		starting, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		for _, part := range []*stack.Service{&w.Forwarder, &w.Engine} {
			if err := part.Start(starting); err != nil {
				t.Error(err)
			}
		}
		if err := s.WaitFleet(starting, s.EPPs[0].Name, s.EPPs[0].Admin, len(s.Workers)); err != nil {
			t.Error(err)
		}
		cancel()
	}
	stop()
	clients.Wait()
	for _, list := range bad {
		for _, one := range list {
			t.Error(one)
		}
	}
	if slices.Min(sent) == 0 {
		t.Errorf("some clients sent nothing: %v", sent)
	}
}
