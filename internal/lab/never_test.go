package lab

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/picker"
)

// TestAPolicyThatNeverDispatchesEndsTheReplayWithItsReason gives the routers a fleet
// that has nobody.
func TestAPolicyThatNeverDispatchesEndsTheReplayWithItsReason(t *testing.T) {
	cfg := DefaultGenerateConfig()
	cfg.Kind, cfg.Requests = SharedPrompt, 3000
	trace, err := Generate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []admission.Mode{admission.Off, admission.Enforce} {
		s := DefaultSetup()
		s.Admission.Mode, s.Admission.QueueDepth = mode, 10
		m, err := newSim(trace, &s)
		if err != nil {
			t.Fatal(err)
		}
		empty := newFleet(nil, trace.BlockTokens)
		if m.routers[0], err = newRouter(&s, 0, empty, nil, func() time.Time { return at(m.now) }); err != nil {
			t.Fatal(err)
		}
		err = m.run(t.Context(), nil)
		if !errors.Is(err, picker.ErrNoWorker) || !strings.Contains(err.Error(), "none of the first 1000 requests was dispatched") {
			t.Errorf("mode %v: error %v", mode, err)
		}
	}
}

// TestIdleEnginesAndWaitingRequestsEndTheReplay keeps a request parked that nothing
// will ever wake.
func TestIdleEnginesAndWaitingRequestsEndTheReplay(t *testing.T) {
	cfg := DefaultGenerateConfig()
	cfg.Kind, cfg.Requests = SharedPrompt, 3
	trace, err := Generate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := DefaultSetup()
	s.Samples = 10
	m, err := newSim(trace, &s)
	if err != nil {
		t.Fatal(err)
	}
	m.open, m.ended = 1, -1 // one more than will ever end
	if err = m.run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "wait for ever") {
		t.Errorf("error %v", err)
	}
}
