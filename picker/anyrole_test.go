package picker_test

import (
	"errors"
	"testing"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/picker"
)

// TestWhatIsNoGenerationGoesToAWorkerOfAnyRole: a GET of the models must not
// fail because the fleet has no mixed worker; a prompt must not land on half a
// pair.
func TestWhatIsNoGenerationGoesToAWorkerOfAnyRole(t *testing.T) {
	role := func(id string, r fleet.Role) *fleet.Worker {
		w := worker(id)
		w.Role, w.Protocol = r, "sglang-bootstrap"
		return w
	}
	tests := []struct {
		name    string
		workers []*fleet.Worker
		anyRole bool
		want    string // "" for none
	}{
		{"the decode worker of a fleet of pairs", []*fleet.Worker{role("d", fleet.Decode), role("p", fleet.Prefill)}, true, "d"},
		{"a prefill worker where nothing else is", []*fleet.Worker{role("p", fleet.Prefill)}, true, "p"},
		{"the mixed worker where there is one", []*fleet.Worker{role("d", fleet.Decode), role("m", fleet.Mixed)}, true, "m"},
		{"a generation goes to none of them", []*fleet.Worker{role("d", fleet.Decode), role("p", fleet.Prefill)}, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, config(picker.KVAware, 1), tt.workers...)
			req := &picker.Request{AnyModel: true, ByLoad: true, NoPair: true, AnyRole: tt.anyRole}
			d, err := w.p.Pick(w.now, req)
			if tt.want == "" {
				if !errors.Is(err, picker.ErrNoWorker) {
					t.Fatalf("picked %v, error %v", d.Worker, err)
				}
				return
			}
			if err != nil || d.Worker.ID != tt.want || d.Prefill != nil {
				t.Fatalf("picked %v beside %v, error %v; want %s alone", d.Worker, d.Prefill, err, tt.want)
			}
			d.Done(w.now, breaker.Success)
			again, err := w.p.Direct(w.now, tt.want, "", req) // as the forwarder is told
			if err != nil || again.Worker.ID != tt.want {
				t.Fatalf("named: %v, error %v", again.Worker, err)
			}
			again.Done(w.now, breaker.Success)
		})
	}
}
