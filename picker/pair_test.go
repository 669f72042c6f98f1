package picker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

// leg is a prefill or decode worker of the given protocol.
func leg(id, protocol string) *fleet.Worker {
	w := worker(id)
	w.Role, w.Protocol = fleet.Decode, protocol
	if id[0] == 'p' {
		w.Role = fleet.Prefill
	}
	return w
}

// TestP8LegsAlwaysTalk: Infera picks the legs one by one and answers 500 when
// they differ in protocol; here every pick of a mixed fleet is a working pair,
// also while workers come, go, trip and fail.
func TestP8LegsAlwaysTalk(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	protocols := []string{"a", "b", "", "unknown"}
	cfg := config(picker.KVAware, 1)
	cfg.Protocols = []string{"a", "b"}
	w := newWorld(t, cfg, leg("p0", "a"), leg("d0", "a"))
	pairs, none := 0, 0
	for i := range 3000 {
		switch rng.IntN(12) {
		case 0:
			w.feed.Put(leg(fmt.Sprint("p", rng.IntN(5)), protocols[rng.IntN(4)]))
		case 1:
			w.feed.Put(leg(fmt.Sprint("d", rng.IntN(5)), protocols[rng.IntN(4)]))
		case 2:
			w.feed.Delete(fmt.Sprint(string("pd"[rng.IntN(2)]), rng.IntN(5)))
		case 3:
			w.now = w.now.Add(time.Duration(rng.IntN(8)) * time.Second)
		}
		req := w.request(fmt.Sprintf("s:%d+q%d:32", 16*rng.IntN(20), i%7))
		if rng.IntN(4) == 0 {
			req.Tried = []string{fmt.Sprint(string("pd"[rng.IntN(2)]), rng.IntN(5))}
		}
		d, err := w.p.Pick(w.now, req)
		if err != nil {
			if !errors.Is(err, picker.ErrNoWorker) && !errors.Is(err, picker.ErrNoModel) {
				t.Fatal(err)
			}
			none++
			continue
		}
		pairs++
		if d.Prefill == nil || d.Prefill.Protocol != d.Worker.Protocol || d.Worker.Protocol != "a" && d.Worker.Protocol != "b" {
			t.Fatalf("pick %d: %+v", i, d)
		}
		d.PrefillDone(w.now, breaker.Outcome(rng.IntN(7)))
		d.Done(w.now, breaker.Outcome(rng.IntN(7)))
	}
	if pairs < 500 || none < 100 {
		t.Errorf("%d pairs and %d refusals: the test tests little", pairs, none)
	}
}

func TestAPairIsGivenBackOnceInWhateverOrderItEnds(t *testing.T) {
	p, d := leg("p", "x"), leg("d", "x")
	steps := map[string]func(*picker.Decision, time.Time){
		"first":     func(d *picker.Decision, now time.Time) { d.FirstToken(now) },
		"prefilled": func(d *picker.Decision, now time.Time) { d.PrefillDone(now, breaker.Success) },
		"broken":    func(d *picker.Decision, now time.Time) { d.PrefillDone(now, breaker.Connect) },
		"done":      func(d *picker.Decision, now time.Time) { d.Done(now, breaker.Success) },
	}
	names := []string{"first", "prefilled", "broken", "done"}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		w := newWorld(t, config(picker.KVAware, 1), p, d)
		dec := w.pick(w.request("x:160"))
		var order []string
		for range 6 {
			name := names[rng.IntN(len(names))]
			order = append(order, name)
			steps[name](&dec, w.now)
		}
		dec.Done(w.now, breaker.Neutral)
		rec := w.p.Dry(w.now, w.request("y:16"))
		for _, r := range []picker.Record{rec, *rec.Prefill} {
			for _, c := range r.Candidates {
				if c.Active != 0 || c.Requests != 0 || c.Waiting != 0 || c.Context != 0 {
					t.Fatalf("after %v: %+v", order, c)
				}
			}
		}
	}
}

// TestP10ADecodeWorkerIsReplacedAlone: the KV cache stays where it is, and only a
// worker that can fetch it is asked.
func TestP10ADecodeWorkerIsReplacedAlone(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), leg("p1", "x"), leg("d1", "x"), leg("d2", "x"), leg("d3", "y"), worker("m"))
	d := w.pick(w.request("s:160"))
	tried := d.Worker.ID
	req := w.request("s:160")
	req.Tried = []string{tried}
	other, err := w.p.Alternate(w.now, req, d.Prefill)
	if err != nil {
		t.Fatal(err)
	}
	if other.Worker.ID == tried || other.Worker.Protocol != "x" || other.Worker.Role != fleet.Decode || other.Prefill != nil {
		t.Errorf("alternate of %s: %+v", tried, other)
	}
	d.Done(w.now, breaker.Connect)
	other.Done(w.now, breaker.Success)
	req.Tried = []string{"d1", "d2"}
	if _, err := w.p.Alternate(w.now, req, d.Prefill); !errors.Is(err, picker.ErrNoPair) {
		t.Errorf("with both tried: %v", err)
	}
	if held := w.p.Held(w.now, 0); len(held) != 0 {
		t.Errorf("still held: %+v", held)
	}
}

func TestTheBurdenOfPromptsIsThePrefillWorkers(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), leg("p", "x"), leg("d", "x"))
	d := w.pick(w.request("x:160"))
	rec := w.p.Dry(w.now, w.request("y:16"))
	if got := rec.Candidates[0]; got.Waiting != 0 || got.Requests != 1 {
		t.Errorf("decode leg: %+v", got)
	}
	if got := rec.Prefill.Candidates[0]; got.Waiting != 160 || got.Requests != 1 {
		t.Errorf("prefill leg: %+v", got)
	}
	d.PrefillDone(w.now, breaker.Success)
	d.FirstToken(w.now)
	rec = w.p.Dry(w.now, w.request("y:16"))
	if got := rec.Candidates[0]; got.Context != 160 || got.Decoders != 1 {
		t.Errorf("decode leg after its first token: %+v", got)
	}
	if got := rec.Prefill.Candidates[0]; got.Requests != 0 {
		t.Errorf("prefill leg when done: %+v", got)
	}
	d.Done(w.now, breaker.Success)
}

func TestPickingAPairDoesNotAllocate(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 1), leg("p1", "x"), leg("p2", "x"), leg("p3", "y"), leg("d1", "x"), leg("d2", "y"))
	req := w.request("s:320")
	end := func() {
		d, err := w.p.Pick(w.now, req)
		if err != nil {
			t.Fatal(err)
		}
		d.PrefillDone(w.now, breaker.Success)
		d.FirstToken(w.now)
		d.Done(w.now, breaker.Success)
	}
	for range 600 {
		end()
	}
	if n := testing.AllocsPerRun(500, end); n >= 1 {
		t.Errorf("%v allocations", n)
	}
}
