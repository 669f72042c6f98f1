package picker_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

// newPicker is a picker without a world.
func newPicker(cfg picker.Config) (*picker.Picker, error) {
	return picker.New(cfg, new(fleet.Store), kvindex.New(kvindex.Config{}), breaker.NewSet(breaker.DefaultConfig()))
}

// ends lets n requests that must go to the worker end with the outcome.
func (w *world) ends(id string, n int, o breaker.Outcome) {
	w.Helper()
	for range n {
		d, err := w.p.Direct(w.now, id, "", &picker.Request{Model: "m", AnyRole: true})
		if err != nil {
			w.Fatal(err)
		}
		d.Done(w.now, o)
	}
}

// spread picks n times, gives each pick back as a success and counts by worker, or
// by pair.
func (w *world) spread(n int, req *picker.Request) map[string]int {
	w.Helper()
	got := map[string]int{}
	for range n {
		d := w.pick(req)
		key := d.Worker.ID
		if d.Prefill != nil {
			key = d.Prefill.ID + key
			d.PrefillDone(w.now, breaker.Success)
		}
		got[key]++
		d.FirstToken(w.now)
		d.Done(w.now, breaker.Success)
	}
	return got
}

// why returns the exclusions of the last pick, by worker.
func (w *world) why() map[string]string {
	out := map[string]string{}
	for _, c := range w.p.Records()[0].Candidates {
		if c.Excluded != "" {
			out[c.Worker] = c.Excluded
		}
	}
	return out
}

// Three faults of one class take a worker out of the very next request's
// candidates (failover §2A).
func TestEachClassOfFaultsLeavesTheWorkerOut(t *testing.T) {
	for _, o := range []breaker.Outcome{breaker.Connect, breaker.Origin, breaker.Stream} {
		w := newWorld(t, config(picker.LeastLoad, 1), workers("A", "B")...)
		w.ends("A", 3, o)
		if got := w.spread(20, w.request("x:16")); got["B"] != 20 {
			t.Errorf("%v: %v", o, got)
		}
		if why := w.why(); why["A"] != "circuit_open" {
			t.Errorf("%v: %v", o, why)
		}
	}
}

func TestBusyTTLLeavesAWorkerOutForOneSecond(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), workers("A", "B")...)
	w.ends("A", 1, breaker.Busy)
	if got := w.spread(10, w.request("x:16")); got["B"] != 10 || w.why()["A"] != "busy" {
		t.Errorf("%v, %v", got, w.why())
	}
	if n, err := testutil.GatherAndCount(w.reg, "infera_router_excluded"); n == 0 || err != nil {
		t.Errorf("%d series of exclusions, %v", n, err)
	}
	w.ends("B", 1, breaker.Busy)
	d := w.pick(w.request("x:16")) // all busy: they answer for themselves
	d.Done(w.now, breaker.Neutral)
	w.now = w.now.Add(time.Second)
	if got := w.spread(40, w.request("x:16")); got["A"] == 0 || got["B"] == 0 {
		t.Errorf("a second later: %v", got)
	}
}

// All open: the request is sent all the same, to the one that failed longest ago,
// one at a time to each; that trips nothing (failover §2A, all-open).
func TestAllOpenTakesTheLeastRecentlyFailed(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B", "C")...)
	w.hold("C", "s:160", 16)
	for _, id := range []string{"B", "A", "C"} {
		w.ends(id, 3, breaker.Origin)
		w.now = w.now.Add(100 * time.Millisecond)
	}
	var flying []picker.Decision
	var order []string
	for range 6 {
		d := w.pick(w.request("s:160"))
		flying, order = append(flying, d), append(order, d.Worker.ID)
	}
	if want := []string{"B", "A", "C", "B", "A", "C"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	for _, i := range []int{2, 5, 0, 3, 1, 4} { // C fails first now, A last
		w.now = w.now.Add(time.Millisecond)
		flying[i].Done(w.now, breaker.Origin)
	}
	order = nil
	for range 6 {
		d := w.pick(w.request("s:160"))
		order = append(order, d.Worker.ID)
		w.now = w.now.Add(time.Millisecond)
		d.Done(w.now, breaker.Origin)
	}
	if want := []string{"C", "B", "A", "C", "B", "A"}; !slices.Equal(order, want) {
		t.Errorf("then %v, want %v", order, want)
	}
	want := `
# HELP infera_router_worker_breaker_all_open_total Requests sent although the circuits of all candidates were open.
# TYPE infera_router_worker_breaker_all_open_total counter
infera_router_worker_breaker_all_open_total 12
# HELP infera_router_worker_breaker_trips_total How often the worker's circuit opened, failed probes included.
# TYPE infera_router_worker_breaker_trips_total counter
infera_router_worker_breaker_trips_total{worker_id="A"} 1
infera_router_worker_breaker_trips_total{worker_id="B"} 1
infera_router_worker_breaker_trips_total{worker_id="C"} 1
`
	if err := testutil.GatherAndCompare(w.reg, strings.NewReader(want),
		"infera_router_worker_breaker_all_open_total", "infera_router_worker_breaker_trips_total"); err != nil {
		t.Error(err)
	}
	d := w.pick(w.request("s:160"))
	d.FirstToken(w.now) // it has recovered
	if got := w.set.Circuit(d.Worker.ID).State(w.now); got != breaker.Closed {
		t.Errorf("%s after its first token: %v", d.Worker.ID, got)
	}
}

func TestFiftyRequestsProbeAHalfOpenWorkerOnce(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 20), workers("A", "B")...)
	w.hold("A", "s:1600", 16)
	w.ends("A", 3, breaker.Origin)
	w.now = w.now.Add(5 * time.Second)
	var mu sync.Mutex
	got := map[string]int{}
	var wg sync.WaitGroup
	req := w.request("s:1600")
	for range 50 {
		wg.Go(func() {
			own := *req
			d, err := w.p.Pick(w.now, &own)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			got[d.Worker.ID]++
		})
	}
	wg.Wait()
	if got["A"] != 1 || got["B"] != 49 {
		t.Errorf("%v, want one on A", got)
	}
}

func TestADepartedWorkersSeriesAreGone(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), workers("A", "B")...)
	w.ends("A", 3, breaker.Origin)
	w.feed.Delete("A")
	w.p.Refresh(w.now)
	families, err := w.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "worker_id" && l.GetValue() == "A" {
					t.Errorf("%s still has a series of A", f.GetName())
				}
			}
		}
	}
	w.feed.Put(worker("A"))
	if got := w.spread(20, w.request("x:16")); got["A"] == 0 {
		t.Errorf("a worker that comes back starts anew: %v", got)
	}
}

// P1·D1 fails the transfer, P1·D2, P2·D1 and P2·D2 are fine: after two faults P1·D1
// gets nothing, the other three go on, and both workers' states stay 0.
func TestPairBreakerThresholdKeepsTheOtherThreeServing(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("p2", "x"), leg("d1", "x"), leg("d2", "x"))
	got, bad := map[string]int{}, 0
	for i := range 200 {
		d := w.pick(w.request(fmt.Sprintf("q%d:16", i)))
		d.PrefillDone(w.now, breaker.Success)
		if d.Prefill.ID == "p1" && d.Worker.ID == "d1" {
			bad++
			d.Done(w.now, breaker.Transfer)
			continue
		}
		got[d.Prefill.ID+d.Worker.ID]++
		d.FirstToken(w.now)
		d.Done(w.now, breaker.Success)
	}
	if bad != 2 || got["p1d2"] == 0 || got["p2d1"] == 0 || got["p2d2"] == 0 {
		t.Errorf("%d requests on the bad pair, %v on the others", bad, got)
	}
	for _, id := range []string{"p1", "p2", "d1", "d2"} {
		if state := w.set.Circuit(id).State(w.now); state != breaker.Closed {
			t.Errorf("%s: %v", id, state)
		}
	}
	busy, err := w.p.Direct(w.now, "d2", "p2", w.request("busy:16"))
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Done(w.now, breaker.Neutral)
	w.pick(w.request("x:16")) // p1 and d1 have less to do, and may not meet
	if last := w.p.Records()[:2]; last[0].Chosen == "p1" && last[1].Chosen == "d1" || last[0].Chosen == "d1" && last[1].Chosen == "p1" {
		t.Errorf("the open pair was picked: %v", last)
	}
	if why := w.why(); why["p1"] != "pair_open" && why["d1"] != "pair_open" && !slices.ContainsFunc(w.p.Records()[:2], func(r picker.Record) bool {
		return slices.ContainsFunc(r.Candidates, func(c picker.Candidate) bool { return c.Excluded == "pair_open" })
	}) {
		t.Error("no record says why")
	}
	w.now = w.now.Add(10 * time.Second) // one probe, which works
	back := map[string]int{}
	for range 100 {
		for k, n := range w.spread(1, w.request("y:16")) {
			back[k] += n
		}
	}
	if back["p1d1"] == 0 {
		t.Errorf("after the cooldown: %v", back)
	}
}

func TestTheCheapestPairThatIsLeftIsTaken(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), leg("p1", "x"), leg("p2", "x"), leg("d1", "x"), leg("d2", "x"))
	w.hold("p1", "s:1600", 16)
	for range 2 {
		d, err := w.p.Direct(w.now, "d1", "p1", w.request("s:1600"))
		if err != nil {
			t.Fatal(err)
		}
		d.PrefillDone(w.now, breaker.Success)
		d.Done(w.now, breaker.Transfer)
	}
	// d2 is a little busier than d1; not as much as p1 saves.
	load, err := w.p.Direct(w.now, "d2", "p2", w.request("load:32"))
	if err != nil {
		t.Fatal(err)
	}
	defer load.Done(w.now, breaker.Neutral)
	for i := range 20 {
		d := w.pick(w.request("s:1600"))
		if i == 0 && (d.Prefill.ID != "p1" || d.Worker.ID != "d2") {
			t.Fatalf("picked %s with %s", d.Worker.ID, d.Prefill.ID)
		}
		cost := map[string]float64{}
		for _, rec := range w.p.Records()[:2] {
			for _, c := range rec.Candidates {
				if c.Excluded != "role" {
					cost[c.Worker] = c.Cost
				}
			}
		}
		got := cost[d.Prefill.ID] + cost[d.Worker.ID]
		for _, pair := range [][2]string{{"p1", "d2"}, {"p2", "d1"}, {"p2", "d2"}} {
			if want := cost[pair[0]] + cost[pair[1]]; got > want+1e-6 {
				t.Errorf("pick %d: %s with %s costs %g, %v only %g", i, d.Worker.ID, d.Prefill.ID, got, pair, want)
			}
		}
		d.Done(w.now, breaker.Neutral)
	}
}

func TestAllPairsOpenTakesTheOldest(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("d1", "x"), leg("p2", "y"), leg("d2", "y"))
	for _, n := range []string{"2", "1"} {
		for range 2 {
			d, err := w.p.Direct(w.now, "d"+n, "p"+n, w.request("s:16"))
			if err != nil {
				t.Fatal(err)
			}
			d.PrefillDone(w.now, breaker.Success)
			d.Done(w.now, breaker.Transfer)
		}
		w.now = w.now.Add(time.Second)
	}
	d := w.pick(w.request("s:16"))
	if d.Prefill.ID != "p2" || d.Worker.ID != "d2" {
		t.Errorf("picked %s with %s, want the pair that failed first", d.Worker.ID, d.Prefill.ID)
	}
	d.FirstToken(w.now)
	if w.set.Pair("p2", "d2").State(w.now) != breaker.Closed {
		t.Error("its first token has not closed the pair's circuit")
	}
	d.Done(w.now, breaker.Success)
}

// A prefill worker that was tripped is back with the pair's first token, not when
// its own leg has answered.
func TestAPrefillWorkersProbeEndsWithThePairsFirstToken(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("d1", "x"))
	for range 3 {
		d := w.pick(w.request("s:16"))
		d.PrefillDone(w.now, breaker.Origin)
		d.Done(w.now, breaker.Neutral)
	}
	w.now = w.now.Add(5 * time.Second)
	for _, firstThenAnswer := range []bool{false, true} {
		d := w.pick(w.request("s:16"))
		if firstThenAnswer { // legs side by side
			d.FirstToken(w.now)
		}
		d.PrefillDone(w.now, breaker.Success)
		got := w.set.Circuit("p1").State(w.now)
		if want := map[bool]breaker.State{false: breaker.HalfOpen, true: breaker.Closed}[firstThenAnswer]; got != want {
			t.Errorf("first token before the answer %v: %v, want %v", firstThenAnswer, got, want)
		}
		d.Done(w.now, breaker.Neutral)
	}
}

type sick map[string]bool

func (s sick) Healthy(id string) bool { return !s[id] }

func TestUnhealthyWorkersAreLeftOutUnlessAllAre(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), workers("A", "B")...)
	h := sick{"A": true}
	w.p.SetHealth(h)
	if got := w.spread(20, w.request("x:16")); got["B"] != 20 || w.why()["A"] != "unhealthy" {
		t.Errorf("%v, %v", got, w.why())
	}
	h["B"] = true
	w.now = w.now.Add(time.Second)
	if got := w.spread(20, w.request("x:16")); got["A"]+got["B"] != 20 {
		t.Errorf("all unhealthy: %v", got)
	}
	clear(h)
	w.now = w.now.Add(time.Second)
	if got := w.spread(40, w.request("x:16")); got["A"] == 0 {
		t.Errorf("healthy again: %v", got)
	}
}

func TestOnReleaseFollowsEveryEnd(t *testing.T) {
	w := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("d1", "x"))
	calls := 0
	w.p.OnRelease(func() {
		calls++
		w.p.Held(w.now, 0) // no lock is held
	})
	d := w.pick(w.request("s:16"))
	d.PrefillDone(w.now, breaker.Success)
	d.Done(w.now, breaker.Success)
	if calls != 2 {
		t.Errorf("%d calls, want one for each leg", calls)
	}
	d.Done(w.now, breaker.Success)
	if calls != 2 {
		t.Error("an end that was no end called again")
	}
}

func TestAffinity(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B")...)
	w.hold("A", "s:160", 16)
	hit, miss := w.pick(w.request("s:160")), w.pick(w.request("t:160"))
	if !hit.Affinity() || miss.Affinity() {
		t.Errorf("a hit %v, a miss %v", hit.Affinity(), miss.Affinity())
	}
	pairs := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("d1", "x"))
	if d := pairs.pick(pairs.request("t:160")); !d.Affinity() {
		t.Error("half of a pair has none")
	}
}

func TestSetConfigAppliesToLaterPicks(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 20), workers("A", "B")...)
	w.hold("A", "s:1600", 16)
	before := w.pick(w.request("s:1600"))
	cfg := config(picker.LeastLoad, 20)
	cfg.Caps = picker.Caps{Worker: 1, Enforce: true}
	if err := w.p.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	if d := w.pick(w.request("s:1600")); d.Worker.ID != "B" {
		t.Errorf("picked %s", d.Worker.ID)
	}
	if _, err := w.p.Pick(w.now, w.request("s:1600")); !errors.Is(err, picker.ErrFull) {
		t.Errorf("the third: %v", err)
	}
	if records := w.p.Records(); records[2].Policy != picker.KVAware || records[1].Policy != picker.LeastLoad {
		t.Errorf("policies of the records: %s, %s", records[2].Policy, records[1].Policy)
	}
	before.Done(w.now, breaker.Success)
	cfg.Policy = "best"
	if err := w.p.SetConfig(cfg); err == nil {
		t.Error("a bad tuning is taken")
	}
}

// In LoxiLB's gateway a prefill or decode worker whose circuit had opened once stayed
// out for ever: its selection looked at the state, and only a pass of its own made that
// half-open (failover.md §6).
func TestLoxiLBAWorkerOfAPairComesBackBehindItsCooldown(t *testing.T) {
	for _, ill := range []string{"p1", "d1"} {
		w := newWorld(t, config(picker.LeastLoad, 1), leg("p1", "x"), leg("p2", "x"), leg("d1", "x"), leg("d2", "x"))
		legs := func(n int) map[string]int {
			got := map[string]int{}
			for range n {
				d := w.pick(w.request("x:16"))
				got[d.Prefill.ID]++
				got[d.Worker.ID]++
				d.PrefillDone(w.now, breaker.Success)
				d.FirstToken(w.now)
				d.Done(w.now, breaker.Success)
			}
			return got
		}
		for faults := 0; faults < 3; {
			d := w.pick(w.request("x:16"))
			switch ill {
			case d.Prefill.ID:
				d.PrefillDone(w.now, breaker.Origin)
				d.Done(w.now, breaker.Neutral)
				faults++
			case d.Worker.ID:
				d.PrefillDone(w.now, breaker.Success)
				d.Done(w.now, breaker.Origin)
				faults++
			default:
				d.Done(w.now, breaker.Neutral)
			}
		}
		if got := legs(40); got[ill] != 0 {
			t.Errorf("%s got %d legs while its circuit is open", ill, got[ill])
		}
		w.now = w.now.Add(6 * time.Second)
		if got := legs(200); got[ill] < 60 {
			t.Errorf("%s got %d of 200 legs behind its cooldown: %v", ill, got[ill], got)
		}
	}
}
