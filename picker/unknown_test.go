package picker_test

import (
	"errors"
	"testing"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

// TestAnUnknownFleetIsNoAnswerAboutAModel: before discovery has answered, a model
// may well exist, so a client must be told to try again (503), not that there is
// no such model (404).
func TestAnUnknownFleetIsNoAnswerAboutAModel(t *testing.T) {
	store := new(fleet.Store)
	p, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		t.Fatal(err)
	}
	req := &picker.Request{Model: "m"}
	if _, err := p.Pick(t0, req); !errors.Is(err, picker.ErrNoWorker) || errors.Is(err, picker.ErrNoModel) {
		t.Errorf("before the first listing: %v, want ErrNoWorker", err)
	}
	feed := fleet.NewFeed(store)
	feed.Replace(nil)
	if _, err := p.Pick(t0, req); !errors.Is(err, picker.ErrNoWorker) || errors.Is(err, picker.ErrNoModel) {
		t.Errorf("of an empty fleet: %v, want ErrNoWorker", err) // the Endpoint Picker Protocol wants 503
	}
	feed.Put(&fleet.Worker{ID: "a", URL: "http://10.0.0.1:1", Host: "10.0.0.1", Port: 1, Model: "other", DPRank: -1})
	if _, err := p.Pick(t0, req); !errors.Is(err, picker.ErrNoModel) {
		t.Errorf("of a fleet with another model: %v, want ErrNoModel", err)
	}
}

// TestAWorkerOfUnknownModelServesWhatNobodyElseDoes: a Pod without a record has
// told nothing about its model, or not yet.
func TestAWorkerOfUnknownModelServesWhatNobodyElseDoes(t *testing.T) {
	named := &fleet.Worker{ID: "named", URL: "http://10.0.0.1:1", Host: "10.0.0.1", Port: 1, Model: "m", DPRank: -1, BlockSize: 16}
	mute := &fleet.Worker{ID: "mute", URL: "http://10.0.0.2:1", Host: "10.0.0.2", Port: 1, DPRank: -1, BlockSize: 32}
	w := newWorld(t, config(picker.KVAware, 1), named, mute)
	for name, tc := range map[string]struct {
		req  picker.Request
		want string
	}{
		"the model that is known":   {picker.Request{Model: "m"}, "named"},
		"a model that is not known": {picker.Request{Model: "n"}, "mute"},
	} {
		for range 8 {
			dec, err := w.p.Pick(t0, &tc.req)
			if err != nil || dec.Worker.ID != tc.want {
				t.Fatalf("%s: worker %v, error %v, want %s", name, dec.Worker, err, tc.want)
			}
			dec.Done(t0, breaker.Neutral)
		}
	}
	seen := map[string]bool{}
	for range 16 {
		dec, err := w.p.Pick(t0, &picker.Request{Model: "n", AnyModel: true, ByLoad: true})
		if err != nil {
			t.Fatal(err)
		}
		seen[dec.Worker.ID] = true // not given back: load spreads them
	}
	if len(seen) != 2 {
		t.Errorf("a request for any model went to %v only", seen)
	}
	if got := w.p.BlockSizes("n", nil); len(got) != 1 || got[0] != 32 {
		t.Errorf("block sizes %v, want the mute worker's", got)
	}
	if _, err := w.p.Direct(t0, "mute", "", &picker.Request{Model: "n"}); err != nil {
		t.Errorf("named by an EPP: %v", err)
	}
}
