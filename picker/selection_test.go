package picker

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pointsman/scorer"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newPicker is a picker over n cold workers of model m.
func newPicker(t *testing.T, policy string, n int) *Picker {
	t.Helper()
	store := new(fleet.Store)
	var workers []*fleet.Worker
	for i := range n {
		workers = append(workers, &fleet.Worker{ID: fmt.Sprint("w", i), Host: fmt.Sprint("w", i), Model: "m", BlockSize: 16, DPRank: -1})
	}
	fleet.NewFeed(store).Replace(workers)
	cfg := DefaultConfig()
	cfg.Policy, cfg.Seed = policy, 1
	breakers := breaker.DefaultConfig()
	breakers.Jitter = 0
	p, err := New(cfg, store, kvindex.New(kvindex.Config{}), breaker.NewSet(breakers))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestChoose(t *testing.T) {
	type row struct{ cost, hit, active, recent float64 }
	inf := math.Inf(1)
	tests := []struct {
		name string
		rows []row
		want []int // any of these
	}{
		{"the cheapest", []row{{3, 0, 0, 0}, {1, 0, 9, 9}, {2, 9, 0, 0}}, []int{1}},
		{"equal costs, one warm, nothing in flight: the warm one", []row{{5, 0, 0, 0}, {5, 4, 0, 4}}, []int{1}},
		{"equal costs, the warm one as busy as the cold: the warm one", []row{{5, 0, 3, 0}, {5, 4, 3, 2}}, []int{1}},
		{"equal costs, the warm one busier than a cold one: the less loaded", []row{{5, 0, 2, 0}, {5, 4, 3, 0}}, []int{0}},
		{"of two warm ones the one that is not busier than the cold", []row{{5, 0, 2, 2}, {5, 4, 3, 0}, {5, 1, 2, 1}}, []int{2}},
		{"all warm: the less loaded", []row{{5, 1, 3, 0}, {5, 4, 3, 1}, {5, 4, 2, 1}}, []int{0, 2}},
		{"all cold: the less loaded", []row{{5, 0, 3, 0}, {5, 0, 1, 1}, {5, 0, 2, 1}}, []int{1}},
		{"nothing tells them apart: any", []row{{5, 0, 1, 0}, {5, 0, 1, 0}, {6, 0, 0, 0}, {5, 0, 0, 1}}, []int{0, 1, 3}},
		{"rounding is no difference", []row{{0.1 + 0.2, 0, 0.1, 0.2}, {0.3, 0, 0.3, 0}}, []int{0, 1}},
		{"a token is a difference, at any height", []row{{1e8 + 1, 0, 0, 0}, {1e8, 0, 0, 0}}, []int{1}},
		{"infinite costs still give somebody", []row{{inf, 0, 0, 0}, {inf, 0, 0, 0}}, []int{0, 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := map[int]bool{}
			for turn := range 2 * len(tt.rows) {
				var s selection
				n := len(tt.rows)
				s.policy = &policies[0]
				s.in.Resize(n, scorer.Basic)
				s.in.Clear()
				s.why = make([]exclusion, n)
				s.left = n
				for i, r := range tt.rows {
					s.cost = append(s.cost, r.cost)
					s.in.Hit[i], s.in.Active[i], s.in.Recent[i] = r.hit, r.active, r.recent
					s.anyHit = s.anyHit || r.hit > 0
				}
				got[s.choose(func(n int) int { return turn % n })] = true
			}
			if len(got) != len(tt.want) {
				t.Errorf("chose %v, want each of %v", got, tt.want)
			}
			for _, i := range tt.want {
				if !got[i] {
					t.Errorf("never chose %d: %v", i, got)
				}
			}
		})
	}
}

func TestExcludedRowsAreNeverChosen(t *testing.T) {
	var s selection
	s.policy = &policies[0]
	s.in.Resize(3, scorer.Basic)
	s.in.Clear()
	s.why = []exclusion{tried, eligible, opened}
	s.cost = []float64{0, 100, 0}
	s.left = 1
	if got := s.choose(func(int) int { return 0 }); got != 1 {
		t.Errorf("chose %d, which is excluded", got)
	}
}

// Between the filter and the permit another door may take the probe.
func TestProbeTakenByAnother(t *testing.T) {
	trip := func(p *Picker, id string) *breaker.Circuit {
		c := p.breakers.Circuit(id)
		for range 3 {
			c.Force(t0).Done(t0, breaker.Connect)
		}
		return c
	}
	later := t0.Add(6 * time.Second)
	score := func(t *testing.T, p *Picker) *selection {
		t.Helper()
		tab := p.sync()
		if err := p.score(later, &Request{Model: "m"}, tab, tab.models["m"]); err != nil {
			t.Fatal(err)
		}
		return &p.sel
	}
	t.Run("the next candidate is taken", func(t *testing.T) {
		p := newPicker(t, KVAware, 2)
		c := trip(p, "w0")
		p.targets["w1"].plain = 1000 // w0 is the cheaper
		s := score(t, p)
		if s.left != 2 {
			t.Fatalf("%d candidates, want 2: w0's cooldown is over", s.left)
		}
		if _, ok := c.Acquire(later); !ok {
			t.Fatal("no probe")
		}
		i, permit := s.acquire(later, func(int) int { return 0 })
		if s.rows[i].Worker.ID != "w1" || permit.Probe() || s.why[0] != opened {
			t.Errorf("took %s, probe %v, w0 %q", s.rows[i].Worker.ID, permit.Probe(), s.why[0])
		}
	})
	t.Run("nobody is left: dispatched all the same", func(t *testing.T) {
		p := newPicker(t, KVAware, 2)
		a, b := trip(p, "w0"), trip(p, "w1")
		s := score(t, p)
		a.Acquire(later)
		b.Acquire(later)
		i, permit := s.acquire(later, func(int) int { return 0 })
		if !s.allOpen || i < 0 || permit.Probe() {
			t.Errorf("row %d, all open %v, probe %v", i, s.allOpen, permit.Probe())
		}
		permit.Done(later, breaker.Success)
		if a.State(later) != breaker.Closed && b.State(later) != breaker.Closed {
			t.Error("the success of the forced request restored nobody")
		}
	})
}

// The common factor of the fading charges is renewed every few thousand picks:
// that must not show.
func TestChargesFadeForEver(t *testing.T) {
	p := newPicker(t, KVAware, 3)
	var want [3]float64 // in tokens
	for n := range 30_000 {
		req := &Request{Model: "m", Tried: []string{fmt.Sprint("w", n%3), fmt.Sprint("w", (n+n/7)%3)}}
		d, err := p.Pick(t0, req)
		if err != nil {
			t.Fatal(err)
		}
		d.Done(t0, breaker.Neutral)
		for i := range want {
			if want[i] *= 0.97; want[i] < 1e-3*16 {
				want[i] = 0
			}
			if d.Worker.ID == fmt.Sprint("w", i) {
				want[i] += 16
			}
		}
	}
	for i, w := range want {
		if got := p.targets[fmt.Sprint("w", i)].recent * p.scale; math.Abs(got-w) > 1e-6*w {
			t.Errorf("w%d: %g tokens charged, want %g", i, got, w)
		}
	}
	quiet := p.targets["w0"]
	for range 1000 {
		d, err := p.Pick(t0, &Request{Model: "m", Tried: []string{"w0"}})
		if err != nil {
			t.Fatal(err)
		}
		d.Done(t0, breaker.Neutral)
	}
	if c := p.Dry(t0, &Request{Model: "m"}).Candidates[0]; c.Recent != 0 {
		t.Errorf("a worker without picks is still charged %g (%g)", c.Recent, quiet.recent*p.scale)
	}
}

func TestEqualCostsAreSpread(t *testing.T) {
	picked := func(seed uint64) []string {
		p := newPicker(t, KVAware, 8)
		p.rand = newRand(seed)
		var ids []string
		for range 800 { // each on an idle, uncharged fleet
			p.scale = 1
			for _, target := range p.targets {
				target.recent = 0
			}
			d, err := p.Pick(t0, &Request{Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			d.Done(t0, breaker.Neutral)
			ids = append(ids, d.Worker.ID)
		}
		return ids
	}
	one := picked(1)
	count := map[string]int{}
	for _, id := range one {
		count[id]++
	}
	for id, n := range count {
		if n < 60 || n > 140 || len(count) != 8 {
			t.Errorf("%s was picked %d times of 800 among 8 equals: %v", id, n, count)
		}
	}
	if !slices.Equal(one, picked(1)) {
		t.Error("the same seed gave another order")
	}
	if slices.Equal(one, picked(2)) {
		t.Error("another seed gave the same order: replicas would herd")
	}
}

func TestWeights(t *testing.T) {
	prefill, decode := 20.0, 2.0
	cfg := Config{OverlapWeight: 1, PrefillWeight: &prefill, DecodeWeight: &decode}
	for role, want := range map[fleet.Role]float64{fleet.Mixed: 1, fleet.Prefill: 20, fleet.Decode: 2} {
		if got := cfg.weightOf(role); got != want {
			t.Errorf("%v: %g, want %g", role, got, want)
		}
	}
	plain := Config{OverlapWeight: 3}
	for _, role := range []fleet.Role{fleet.Mixed, fleet.Prefill, fleet.Decode} {
		if got := plain.weightOf(role); got != 3 {
			t.Errorf("%v without an override: %g, want 3", role, got)
		}
	}
	tests := []struct {
		name string
		req  Request
		want weights
	}{
		{"unset", Request{}, weights{text: 10, image: 10}},
		{"short", Request{Retention: RetentionShort}, weights{text: 10, image: 10}},
		{"long", Request{Retention: RetentionLong}, weights{text: 20, image: 20}},
		{"none, asked for", Request{Retention: RetentionNone}, weights{text: 1, image: 1}},
		{"images", Request{Multimodal: true}, weights{text: 0, image: 10}},
		{"images, long", Request{Multimodal: true, Retention: RetentionLong}, weights{text: 0, image: 20}},
		{"by load", Request{ByLoad: true, Retention: RetentionLong}, weights{}},
		{"nonsense", Request{Retention: 77}, weights{text: 10, image: 10}},
	}
	for _, tt := range tests {
		if got := (&Config{OverlapWeight: 10}).weigh(fleet.Mixed, &tt.req); got.text != tt.want.text || got.image != tt.want.image {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestListFor(t *testing.T) {
	lists := []kvindex.Blocks{{Size: 1}, {Size: 16}}
	tests := []struct {
		name   string
		lists  []kvindex.Blocks
		approx bool
		size   int
		want   int
	}{
		{"the list of that size", lists, false, 16, 1},
		{"none of that size", lists, false, 32, -1},
		{"unknown size", lists, false, 0, -1},
		{"no lists", nil, false, 16, -1},
		{"bytes fit every size", lists, true, 32, 0},
		{"bytes fit an unknown size", lists, true, 0, 0},
		{"bytes, no lists", nil, true, 16, -1},
	}
	for _, tt := range tests {
		if got := listFor(tt.lists, tt.approx, tt.size); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestHerdBound(t *testing.T) {
	tests := []struct {
		name    string
		pending float64
		left    int
		want    int
	}{
		{"an idle fleet", 0, 8, herdFloor},
		{"a few waiting", 8, 8, herdFloor},
		{"a burst", 400, 8, 50},
		{"rounded up", 401, 8, 51},
		{"one worker", 90, 1, 90},
		{"nobody", 0, 0, herdFloor},
	}
	for _, tt := range tests {
		s := selection{pending: tt.pending, left: tt.left}
		if got := s.herd(); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestRestartedWorker(t *testing.T) {
	store := new(fleet.Store)
	feed := fleet.NewFeed(store)
	w := fleet.Worker{ID: "A", Model: "m", BlockSize: 16, DPRank: -1, Incarnation: "one"}
	silent := w
	feed.Put(&silent)
	index := kvindex.New(kvindex.Config{})
	p, err := New(DefaultConfig(), store, index, breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		t.Fatal(err)
	}
	req := &Request{Model: "m", Blocks: []kvindex.Blocks{{Size: 16, Hashes: []kvindex.Hash{1, 2, 3}}}}
	hit := func(when string, want int) {
		t.Helper()
		if got := p.Dry(t0, req).HitTokens; got != want {
			t.Errorf("%s: hit of %d tokens, want %d", when, got, want)
		}
	}
	d, err := p.Pick(t0, req)
	if err != nil {
		t.Fatal(err)
	}
	d.FirstToken(t0)
	hit("served", 48)
	moved := w
	moved.Port = 1 // the record changes, the process does not
	feed.Put(&moved)
	hit("after a change of its record", 48)
	again := w
	again.Incarnation = "two"
	feed.Put(&again)
	hit("after its restart", 0)
	if c := p.Dry(t0, req).Candidates[0]; c.Requests != 1 {
		t.Errorf("after its restart %g requests are in flight, want 1: it will end", c.Requests)
	}
	d.Done(t0, breaker.Connect)
	if got := p.targets["A"].requests; got != 0 {
		t.Errorf("%d requests in flight at the end", got)
	}
}

// A worker that fails at once is always the least loaded: with every circuit
// open the choice must not go by load.
func TestAllOpenTakesTurns(t *testing.T) {
	p := newPicker(t, KVAware, 3)
	for id, target := range p.targets {
		for range 3 {
			p.breakers.Circuit(id).Force(t0).Done(t0, breaker.Connect)
		}
		if id != "w0" {
			target.plain = 1000
		}
	}
	count := map[string]int{}
	for range 30 {
		d, err := p.Pick(t0, &Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		count[d.Worker.ID]++
		d.Done(t0, breaker.Connect)
	}
	for id, n := range count {
		if n != 10 {
			t.Errorf("%s was picked %d times of 30: %v", id, n, count)
		}
	}
}

func TestNothingIsKeptOfDepartedWorkers(t *testing.T) {
	p := newPicker(t, KVAware, 1)
	feed := fleet.NewFeed(p.store)
	for i := range 500 {
		id := fmt.Sprint("pod", i)
		feed.Put(&fleet.Worker{ID: id, Model: "m", BlockSize: 16, DPRank: -1})
		d, err := p.Direct(t0, id, "", &Request{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // half of them leave before their request ends
			d.Done(t0, breaker.Success)
		}
		feed.Delete(id)
		p.Refresh(t0)
		d.Done(t0, breaker.Success)
	}
	if len(p.targets) != 1 || len(p.records.live) != 0 {
		t.Errorf("%d targets and %d reservations are kept, want 1 and 0", len(p.targets), len(p.records.live))
	}
}
