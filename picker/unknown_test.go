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
	fleet.NewFeed(store).Replace(nil)
	if _, err := p.Pick(t0, req); !errors.Is(err, picker.ErrNoModel) {
		t.Errorf("of an empty fleet: %v, want ErrNoModel", err)
	}
}
