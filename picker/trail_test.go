package picker_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/kvindex"
	"pointsman/picker"
)

// foreignPick has another replica, with a picker of its own, pick, and returns what it
// would tell of it.
func (w *world) foreignPick(prompt string) (picker.Decision, picker.Trail) {
	w.Helper()
	other := newWorld(w.TB, config(picker.KVAware, 20), workers("A")...)
	d := other.pick(other.request(prompt))
	return d, d.Trail()
}

// A conversation whose first turn another replica has just sent somewhere goes there,
// though no event tells of it yet.
func TestWhatAnotherReplicaHasSentIsExpected(t *testing.T) {
	w := newWorld(t, config(picker.KVAware, 20), workers("A", "B", "C")...)
	_, tr := w.foreignPick("sys:64+turn1:1000")
	ref := picker.Foreign{Picker: "other", Pick: 7}
	if !w.p.Foretell("B", -1, ref, tr, w.now) || w.p.Foretell("gone", -1, ref, tr, w.now) || w.p.Foretell("A", -1, ref, picker.Trail{}, w.now) {
		t.Error("only a trail on a worker of the fleet is to be taken")
	}
	for i := range 3 {
		d := w.pick(w.request("sys:64+turn1:1000+turn2of" + strconv.Itoa(i) + ":64"))
		if d.Worker.ID != "B" || d.HitTokens != 1056 { // the full blocks of 1,064 tokens
			t.Errorf("picked %s with a hit of %d tokens, want B with 1056", d.Worker.ID, d.HitTokens)
		}
		d.Done(w.now, breaker.Success)
	}
	if d := w.pick(w.request("else:1000")); d.HitTokens != 0 {
		t.Errorf("another prompt hits %d tokens", d.HitTokens)
	}
}

func TestWhatAnotherReplicaHasSentIsForgotten(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(w *world, ref picker.Foreign)
		hit  bool
	}{
		"not while nothing is heard":            {func(*world, picker.Foreign) {}, true},
		"when it has ended without a token":     {func(w *world, ref picker.Foreign) { w.p.Settled(ref, false, w.now) }, false},
		"not with its first token, if no event": {func(w *world, ref picker.Foreign) { w.p.Settled(ref, true, w.now); w.now = w.now.Add(9 * time.Minute) }, true},
		"ten minutes after that":                {func(w *world, ref picker.Foreign) { w.p.Settled(ref, true, w.now); w.now = w.now.Add(11 * time.Minute) }, false},
		"after half a minute of silence":        {func(w *world, _ picker.Foreign) { w.now = w.now.Add(31 * time.Second) }, false},
		"with its worker":                       {func(w *world, _ picker.Foreign) { w.feed.Delete("A"); w.p.Refresh(w.now); w.feed.Replace(workers("A")) }, false},
		"among 4,096 others":                    {func(w *world, _ picker.Foreign) { w.flood() }, false},
		"with its first token, where events tell": {func(w *world, ref picker.Foreign) {
			w.hold("A", "x:32", 16)
			w.now = w.now.Add(time.Second)
			w.p.Refresh(w.now)
			w.p.Settled(ref, true, w.now)
		}, false},
	} {
		w := newWorld(t, config(picker.KVAware, 20), workers("A")...)
		_, tr := w.foreignPick("turn1:1600")
		ref := picker.Foreign{Picker: "other", Pick: 7}
		w.p.Foretell("A", -1, ref, tr, w.now)
		tt.then(w, ref)
		w.p.Refresh(w.now)
		if d := w.pick(w.request("turn1:1600")); (d.HitTokens > 0) != tt.hit {
			t.Errorf("%s: a hit of %d tokens", name, d.HitTokens)
		}
	}
}

func (w *world) flood() {
	for i := range 4096 {
		tr := picker.Trail{Size: 16, Blocks: 9, N: 2, Hashes: [picker.MaxMarks]kvindex.Hash{uint64(2*i + 1), uint64(2*i + 2)}}
		w.p.Foretell("A", -1, picker.Foreign{Picker: "o", Pick: uint64(i + 100)}, tr, w.now)
	}
}

// A burst through two replicas that know of each other's picks spreads as through one.
func TestABurstThroughTwoReplicasSpreads(t *testing.T) {
	const n, fleet = 400, 8
	ids := make([]string, fleet)
	for i := range ids {
		ids[i] = "w" + strconv.Itoa(i)
	}
	pair := [2]*world{}
	for i := range pair {
		pair[i] = newWorld(t, config(picker.KVAware, 20), workers(ids...)...)
	}
	sent := map[string]int{}
	waiting := [2]map[string]float64{{}, {}}
	for i := range n {
		me, other := i%2, 1-i%2
		w := pair[me]
		d := w.pick(w.request("sys:4096+own" + strconv.Itoa(i) + ":512"))
		sent[d.Worker.ID]++
		waiting[me][d.Worker.ID]++
		o, load := pair[other], waiting[me][d.Worker.ID]
		o.p.Foretell(d.Worker.ID, -1, picker.Foreign{Picker: fmt.Sprint(me), Pick: uint64(i + 1)}, d.Trail(), o.now)
		o.p.SetExternal(d.Worker.ID, -1, picker.External{Requests: load, Waiting: load, PrefillTokens: 4608 * load, ActiveTokens: 4096 + 512*load}, o.now)
		for _, w := range pair {
			w.now = w.now.Add(250 * time.Microsecond)
		}
	}
	for id, got := range sent {
		if got > 2*n/fleet {
			t.Errorf("%d of %d on %s, want at most twice the mean", got, n, id)
		}
	}
}

// Whatever two prompts share, a trail tells no more of it, and at least half.
func TestATrailTellsNoMoreThanIsShared(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		shared, mine, theirs := r.IntN(3000), r.IntN(2000), r.IntN(2000)
		w := newWorld(t, config(picker.KVAware, 20), workers("A")...)
		_, tr := w.foreignPick(fmt.Sprintf("s:%d+theirs:%d", shared+1, theirs+64))
		w.p.Foretell("A", -1, picker.Foreign{Picker: "o", Pick: 1}, tr, w.now)
		d := w.pick(w.request(fmt.Sprintf("s:%d+mine:%d", shared+1, mine+64)))
		most := (shared + 1) / 16 * 16
		if least := most/2 - 16; d.HitTokens > most || most >= 128 && d.HitTokens < least {
			t.Errorf("of %d shared tokens, with %d and %d others, %d are expected", shared+1, theirs+64, mine+64, d.HitTokens)
		}
	}
}
