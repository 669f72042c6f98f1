package picker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

func TestConfigValidate(t *testing.T) {
	if err := picker.DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	low := -1.0
	bad := picker.Config{
		Policy: "kv", OverlapWeight: -2, PrefillWeight: &low, DecodeWeight: &low,
		DestinationPort: 70000, ExplainRing: -1,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("a wholly bad one is accepted")
	}
	for _, want := range []string{
		`"kv"`, picker.KVAware, picker.RoundRobin, picker.LeastLoad,
		"overlap weight -2", "prefill overlap weight -1", "decode overlap weight -1", "port 70000", "ring -1",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported: %v", want, err)
		}
	}
	if _, err := picker.New(bad, new(fleet.Store), kvindex.New(kvindex.Config{}), breaker.NewSet(breaker.Config{})); err == nil {
		t.Error("New takes a bad config")
	}
	for _, name := range picker.Policies() {
		cfg := picker.DefaultConfig()
		if cfg.Policy = name; cfg.Validate() != nil {
			t.Errorf("policy %q: %v", name, cfg.Validate())
		}
	}
}

func TestErrorsAreTyped(t *testing.T) {
	drains := worker("drains")
	drains.Status = fleet.Draining
	leg := worker("p")
	leg.Role, leg.Model = fleet.Prefill, "pd"
	w := newWorld(t, config(picker.KVAware, 1), worker("A"), drains, leg)
	picks := []struct {
		name string
		req  picker.Request
		want error
	}{
		{"a model nobody serves", picker.Request{Model: "x"}, picker.ErrNoModel},
		{"no model", picker.Request{}, picker.ErrNoModel},
		{"a model of prefill workers only", picker.Request{Model: "pd"}, picker.ErrNoWorker},
		{"all tried", picker.Request{Model: "m", Tried: []string{"A"}}, picker.ErrNoWorker},
		{"an empty subset", picker.Request{Model: "m", HasSubset: true}, picker.ErrNoEndpoint},
		{"a subset elsewhere", picker.Request{Model: "m", Subset: []string{"B"}}, picker.ErrNoEndpoint},
	}
	for _, tt := range picks {
		t.Run(tt.name, func(t *testing.T) {
			d, err := w.p.Pick(w.now, &tt.req)
			if !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			d.FirstToken(w.now) // of nothing: harmless
			d.Done(w.now, breaker.Connect)
			if got := w.p.Dry(w.now, &tt.req).Error; got != err.Error() {
				t.Errorf("dry run says %q, pick says %q", got, err)
			}
		})
	}
	directs := []struct {
		name, id, prefill string
		want              error
	}{
		{"unknown", "x", "", picker.ErrUnknownWorker},
		{"no ID", "", "", picker.ErrUnknownWorker},
		{"a rank that is not", "A#dp0", "", picker.ErrUnknownWorker},
		{"draining", "drains", "", picker.ErrInactive},
		{"another model", "p", "", picker.ErrOtherModel},
		{"a pair whose decode leg is mixed", "A", "p", picker.ErrOtherModel},
	}
	for _, tt := range directs {
		t.Run("direct: "+tt.name, func(t *testing.T) {
			if _, err := w.p.Direct(w.now, tt.id, tt.prefill, &picker.Request{Model: "m"}); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
		})
	}
	if _, err := w.p.Direct(w.now, "A", "p", &picker.Request{AnyModel: true}); !errors.Is(err, picker.ErrOtherRole) {
		t.Errorf("a mixed worker as decode leg: %v", err)
	}
	if held := w.p.Held(w.now, 0); len(held) != 0 {
		t.Errorf("failed picks left reservations: %v", held)
	}
}

func TestBlockSizes(t *testing.T) {
	small, unknown, other, drains := worker("small"), worker("unknown"), worker("other"), worker("drains")
	small.BlockSize, unknown.BlockSize = 1, 0
	other.Model, other.BlockSize = "n", 128
	drains.Status, drains.BlockSize = fleet.Draining, 512
	w := newWorld(t, config(picker.KVAware, 1), worker("A"), worker("B"), small, unknown, other, drains)
	check := func(when, model string, want ...int) {
		t.Helper()
		if got := w.p.BlockSizes(model, []int{7}); fmt.Sprint(got) != fmt.Sprint(append([]int{7}, want...)) {
			t.Errorf("%s: sizes of %q are %v after the 7, want %v", when, model, got[1:], want)
		}
	}
	check("at first", "m", 1, 16)
	check("at first", "n", 128)
	check("at first", "", 1, 16, 128)
	check("at first", "nobody")
	w.hold("unknown", "x:64", 32)
	w.hold("A", "x:64", 64) // an event's size counts before the registered one
	w.p.Refresh(w.now.Add(time.Second))
	check("after events", "m", 1, 16, 32, 64)
	w.feed.Delete("B") // seen without Run and without a pick
	check("after a removal", "m", 1, 32, 64)
}

func TestReasons(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B")...)
	check := func(name, want string, req *picker.Request) picker.Decision {
		t.Helper()
		w.now = w.now.Add(time.Second)
		d := w.served(req)
		if d.Reason != want {
			t.Errorf("%s: %q, want %q", name, d.Reason, want)
		}
		return d
	}
	check("no worker's cache is known", picker.ReasonNoEvents, w.request("sys:160"))
	d := check("the prompt was there before", "exact", w.request("sys:160"))
	if d.HitTokens != 160 {
		t.Errorf("hit of %d tokens, want 160", d.HitTokens)
	}
	check("caches are known, the prompt is new", picker.ReasonNoMatch, w.request("new:160"))
	short := w.request("s:10")
	short.Reason = "short_prompt"
	check("nothing to compare", "short_prompt", short)
	byLoad := w.request("new2:160")
	byLoad.ByLoad, byLoad.Reason = true, "other_path"
	check("by load", "other_path", byLoad)
	images := w.request("new3:160")
	images.Multimodal, images.Images, images.Reason = true, []uint64{1}, "multimodal"
	if d := check("images", "multimodal", images); d.HitTokens != 0 {
		t.Errorf("a hit of %d tokens is claimed for a prompt with images", d.HitTokens)
	}
}

func TestApproximateBlocksFitEveryWorker(t *testing.T) {
	unknown := worker("unknown")
	unknown.BlockSize = 0
	w := newWorld(t, config(picker.KVAware, 1), unknown)
	text := []byte(strings.Repeat("all work and no play ", 100))
	ask := func() *picker.Request {
		return &picker.Request{
			Model: "m", Approx: true, Reason: "approx", Tokens: len(text) / 4,
			Blocks: []kvindex.Blocks{{Size: 16, Hashes: kvindex.HashBytes(nil, 0, text, 64)}},
		}
	}
	if d := w.served(ask()); d.Reason != picker.ReasonNoMatch || d.HitTokens != 0 {
		t.Errorf("first: %q, %d tokens", d.Reason, d.HitTokens)
	}
	if d := w.served(ask()); d.Reason != "approx" || d.HitTokens != len(text)/64*16 {
		t.Errorf("second: %q, %d tokens, want approx, %d", d.Reason, d.HitTokens, len(text)/64*16)
	}
	zero := ask()
	zero.Blocks[0].Size = 0 // nonsense must not divide by zero
	w.served(zero)
	zero.Approx = false
	w.served(zero)
}

func TestDoneCountsOnce(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"))
	a := w.pick(w.request("x:160"))
	copied := a
	a.FirstToken(w.now)
	copied.FirstToken(w.now)
	a.Done(w.now, breaker.Success)
	copied.Done(w.now, breaker.Connect)
	b := w.pick(w.request("y:160")) // its record is the one a had
	copied.Done(w.now, breaker.Connect)
	copied.FirstToken(w.now)
	w.p.Dry(w.now, w.request("z:16"))
	if held := w.p.Held(w.now, 0); len(held) != 1 || held[0].Streaming {
		t.Errorf("a stale copy ended or changed another request's reservation: %+v", held)
	}
	b.Done(w.now, breaker.Success)
	if got := w.set.Circuit("A").State(w.now); got != breaker.Closed {
		t.Errorf("circuit %v", got)
	}
	if held := w.p.Held(w.now, 0); len(held) != 0 {
		t.Errorf("%+v is still held", held)
	}
}

func TestHeldReportsTheOldestFirst(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"))
	for _, id := range []string{"first", "second", "third"} {
		req := w.request("x:16")
		req.ID = id
		w.pick(req)
		w.now = w.now.Add(time.Minute)
	}
	held := w.p.Held(w.now, 2*time.Minute)
	if len(held) != 2 || held[0].RequestID != "first" || held[1].RequestID != "second" || held[0].Age != 3*time.Minute {
		t.Errorf("held for two minutes: %+v", held)
	}
}

// What a pick adds is what the next one sees; what it ends with is nothing.
func TestLoadFollowsARequest(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"))
	load := func() string {
		c := w.p.Dry(w.now, &picker.Request{Model: "m"}).Candidates[0]
		return fmt.Sprintf("active %g requests %g waiting %g decoders %g context %g", c.Active, c.Requests, c.Waiting, c.Decoders, c.Context)
	}
	check := func(when, want string) {
		t.Helper()
		if got := load(); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	a := w.pick(w.request("sys:160+a:40")) // 12 full blocks of 200 tokens
	check("picked", "active 192 requests 1 waiting 200 decoders 0 context 0")
	b := w.pick(w.request("sys:160+b:32"))
	check("another with the same beginning", "active 224 requests 2 waiting 232 decoders 0 context 0")
	a.FirstToken(w.now)
	check("the first answers", "active 224 requests 2 waiting 32 decoders 1 context 200")
	a.FirstToken(w.now)
	check("only its first token counts", "active 224 requests 2 waiting 32 decoders 1 context 200")
	a.Done(w.now, breaker.Success)
	check("and ends", "active 192 requests 1 waiting 32 decoders 0 context 0")
	c := w.pick(&picker.Request{Model: "m", Tokens: 100})
	check("one without blocks counts one", "active 208 requests 2 waiting 132 decoders 0 context 0")
	b.Done(w.now, breaker.Connect)
	c.Done(w.now, breaker.Neutral)
	check("all ended", "active 0 requests 0 waiting 0 decoders 0 context 0")
}

func TestFirstTokenHeals(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 20), workers("A", "B")...)
	d := w.pick(w.request("p:160"))
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	w.now = w.now.Add(5 * time.Minute) // the prediction is long over
	if again := w.pick(w.request("p:160")); again.Worker != d.Worker || again.HitTokens != 160 {
		t.Errorf("%s with a hit of %d, want %s with 160", again.Worker.ID, again.HitTokens, d.Worker.ID)
	}
	lost := w.pick(w.request("q:160")) // no first token: the promise ends
	lost.Done(w.now, breaker.Neutral)
	w.now = w.now.Add(5 * time.Minute)
	if again := w.pick(w.request("q:160")); again.HitTokens != 0 {
		t.Errorf("a request that never answered left a hit of %d", again.HitTokens)
	}
}

// The breaker takes no permit for a worker that is not dispatched to (P17), and
// lets one probe through, whoever picks.
func TestOnlyTheChosenWorkersPermitIsTaken(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B")...)
	a := w.set.Circuit("A")
	for range 3 {
		a.Force(w.now).Done(w.now, breaker.Connect)
	}
	w.now = w.now.Add(6 * time.Second)
	for range 5 {
		d := w.pick(&picker.Request{Model: "m", Subset: []string{"A", "B"}, Tried: []string{"A"}})
		d.Done(w.now, breaker.Success)
	}
	if !a.Allows(w.now) {
		t.Fatal("picks that went elsewhere used up A's probe")
	}
	probe := w.pick(&picker.Request{Model: "m", Subset: []string{"A"}})
	next := w.pick(&picker.Request{Model: "m"})
	if probe.Worker.ID != "A" || next.Worker.ID != "B" {
		t.Errorf("probe on %s, next on %s", probe.Worker.ID, next.Worker.ID)
	}
	probe.Done(w.now, breaker.Success)
	if got := a.State(w.now); got != breaker.Closed {
		t.Errorf("after the probe's success: %v", got)
	}
}

// The outcome of a pair is its decode worker's; nothing is known of the prefill leg.
func TestPairsOutcomeIsTheDecodeWorkers(t *testing.T) {
	p, d := worker("P"), worker("D")
	p.Role, d.Role, p.Protocol, d.Protocol = fleet.Prefill, fleet.Decode, "x", "x"
	w := newWorld(t, config(picker.KVAware, 1), p, d)
	for range 3 {
		pair, err := w.p.Direct(w.now, "D", "P", w.request("x:160"))
		if err != nil {
			t.Fatal(err)
		}
		if pair.Worker.ID != "D" || pair.Prefill.ID != "P" || pair.Rank != -1 || pair.PrefillRank != -1 {
			t.Fatalf("pair %+v", pair)
		}
		pair.FirstToken(w.now)
		pair.Done(w.now, breaker.Stream)
	}
	if got := w.set.Circuit("D").State(w.now); got != breaker.Open {
		t.Errorf("decode worker after three faults: %v, want open", got)
	}
	if got := w.set.Circuit("P").State(w.now); got != breaker.Closed {
		t.Errorf("prefill worker: %v, want closed", got)
	}
	pair, err := w.p.Direct(w.now, "D", "P", w.request("x:160"))
	if err != nil {
		t.Fatalf("an open circuit refused what the EPP chose: %v", err)
	}
	pair.Done(w.now, breaker.Success)
	if held := w.p.Held(w.now, 0); len(held) != 0 {
		t.Errorf("still held: %+v", held)
	}
}

func TestDepartedWorkersAreForgotten(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B")...)
	w.hold("A", "sys:160", 16)
	flying := w.pick(w.request("sys:160"))
	if flying.Worker.ID != "A" {
		t.Fatalf("picked %s", flying.Worker.ID)
	}
	for range 3 {
		w.set.Circuit("A").Force(w.now).Done(w.now, breaker.Connect)
	}
	w.feed.Delete("A")
	if d := w.served(w.request("sys:160")); d.Worker.ID != "B" || d.HitTokens != 0 {
		t.Errorf("after the removal: %s, %d", d.Worker.ID, d.HitTokens)
	}
	flying.FirstToken(w.now) // of a worker that is gone: nothing to mark
	w.feed.Put(worker("A"))
	rec := w.p.Dry(w.now, w.request("sys:160"))
	if c := rec.Candidates[0]; c.Worker != "A" || c.Hit != 0 || c.Excluded != "" || c.Requests != 1 || c.Recent != 0 {
		t.Errorf("A came back: %+v; want no hit, a closed circuit, and the request that is still on it", c)
	}
	flying.Done(w.now, breaker.Success)
	if c := w.p.Dry(w.now, w.request("sys:160")).Candidates[0]; c.Requests != 0 || c.Active != 0 {
		t.Errorf("after its end: %+v", c)
	}
}

func TestRunForgetsWithoutPicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, config(picker.KVAware, 1), workers("A", "B")...)
		w.now = time.Now()
		w.hold("A", "sys:160", 16)
		old := w.index.Instance("A")
		done := make(chan error)
		run, cancel := context.WithCancel(t.Context())
		go func() { done <- w.p.Run(run) }()
		synctest.Wait()
		before := w.set.Circuit("A")
		w.feed.Delete("A")
		synctest.Wait()
		if got := w.index.Mode(old, time.Now()); got != kvindex.None {
			t.Errorf("the index still knows A: %v", got)
		}
		if w.set.Circuit("A") == before {
			t.Error("A's circuit is the old one")
		}
		w.hold("B", "sys:160", 64) // learned while no request comes
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := w.p.BlockSizes("m", nil); len(got) != 1 || got[0] != 64 {
			t.Errorf("block sizes %v, want [64]", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestRecords(t *testing.T) {
	cfg := config(picker.KVAware, 20)
	cfg.ExplainRing = 3
	drains := worker("drains")
	drains.Status = fleet.Draining
	w := newWorld(t, cfg, worker("A"), worker("B"), drains)
	if got := w.p.Records(); len(got) != 0 {
		t.Errorf("records before any pick: %v", got)
	}
	w.hold("A", "sys:160", 16)
	id := []byte("r0")
	for i := range 5 {
		w.now = w.now.Add(time.Second)
		req := w.request("sys:160+q:16")
		id[1] = byte('0' + i)
		req.ID = string(id)
		w.pick(req)
	}
	_, err := w.p.Pick(w.now, &picker.Request{ID: "refused", Model: "m", HasSubset: true})
	if err == nil {
		t.Fatal("picked within an empty subset")
	}
	records := w.p.Records()
	if len(records) != 3 || records[0].RequestID != "refused" || records[1].RequestID != "r4" || records[2].RequestID != "r3" {
		t.Fatalf("records %v, want refused, r4, r3", records)
	}
	if records[0].Error != err.Error() || records[0].Chosen != "" {
		t.Errorf("refused: error %q, chosen %q", records[0].Error, records[0].Chosen)
	}
	rec := records[1]
	if rec.Chosen != "A" || rec.HitTokens != 176 || rec.TextWeight != 20 || rec.Policy != picker.KVAware || !rec.Time.Equal(w.now) {
		t.Errorf("record %v", rec)
	}
	for _, c := range rec.Candidates[:2] {
		sum := 0.0
		for _, term := range c.Terms {
			sum += term.Cost
		}
		if sum != c.Cost {
			t.Errorf("%s: terms add up to %g, cost %g", c.Worker, sum, c.Cost)
		}
		if c.Chosen != (c.Worker == "A") {
			t.Errorf("%s: chosen %v", c.Worker, c.Chosen)
		}
	}
	if c := rec.Candidates[2]; c.Worker != "drains" || c.Excluded != "not_active" {
		t.Errorf("the draining one: %+v", c)
	}
	var back picker.Record
	if err := json.Unmarshal([]byte(rec.String()), &back); err != nil || back.Candidates[0].Hit != rec.Candidates[0].Hit {
		t.Errorf("not readable as JSON: %v", err)
	}
}

func TestRecordsOff(t *testing.T) {
	cfg := config(picker.KVAware, 1)
	cfg.ExplainRing = 0
	w := newWorld(t, cfg, worker("A"))
	w.served(w.request("x:160"))
	if got := w.p.Records(); len(got) != 0 {
		t.Errorf("%d records with a ring of 0", len(got))
	}
}

func TestDryDoesNothing(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), workers("A", "B", "C")...)
	w.hold("A", "sys:160", 16)
	for range 3 {
		w.set.Circuit("B").Force(w.now).Done(w.now, breaker.Connect)
	}
	w.now = w.now.Add(6 * time.Second)
	req := w.request("sys:160+q:160")
	first := w.p.Dry(w.now, req)
	for range 5 {
		if again := w.p.Dry(w.now, req); again.String() != first.String() {
			t.Fatalf("a dry run changed something:\n%v\n%v", first, again)
		}
	}
	if len(w.p.Records()) != 0 || len(w.p.Held(w.now, 0)) != 0 || !w.set.Circuit("B").Allows(w.now) {
		t.Error("a dry run left a record, a reservation or a permit")
	}
	if d := w.pick(req); d.Worker.ID != first.Chosen || d.HitTokens != first.HitTokens {
		t.Errorf("the dry run said %s with %d, the pick took %s with %d", first.Chosen, first.HitTokens, d.Worker.ID, d.HitTokens)
	}
}

// The picker keeps no part of a request: its strings and hashes may be views of
// a buffer that the next request overwrites.
func TestRequestMayBeReused(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), worker("A"))
	buf := []byte("first-request")
	req := w.request("x:160")
	req.ID = unsafe.String(&buf[0], len(buf))
	d := w.pick(req)
	copy(buf, "XXXXXXXXXXXXX")
	clear(req.Blocks[0].Hashes)
	if got := w.p.Records()[0].RequestID; got != "first-request" {
		t.Errorf("the record's ID is %q", got)
	}
	if got := w.p.Held(w.now, 0)[0].RequestID; got != "first-request" {
		t.Errorf("the reservation's ID is %q", got)
	}
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	if d := w.pick(w.request("x:160")); d.HitTokens != 160 {
		t.Errorf("the prompt that was marked present is not the one that was picked: hit of %d", d.HitTokens)
	}
}
