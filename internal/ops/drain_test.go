package ops_test

import (
	"strings"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/internal/ops"
)

// contract 1.6: a drain that is read back is one that happens.
func TestTheDrainIsReadBackAsItIs(t *testing.T) {
	d := deps(t)
	d.Gate = admission.NewGate(admission.DefaultConfig())
	began := 0
	d.Drain = func() { began++ }
	if _, err := d.Gate.Enter(t.Context(), &admission.Request{Units: 1, Pick: func(time.Time) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	if code, _ := ask(t, d, there, "PUT", ops.DrainPath, ""); code != 403 || began != 0 {
		t.Errorf("from another machine: %d, %d drains begun", code, began)
	}
	if code, body := ask(t, d, here, "GET", ops.DrainPath, ""); code != 200 || !strings.Contains(body, `"draining":false,"in_flight":1`) || began != 0 {
		t.Errorf("before: %d %s", code, body)
	}
	if code, body := ask(t, d, here, "PUT", ops.DrainPath, ""); code != 200 || !strings.Contains(body, `"requested":true`) || began != 1 {
		t.Errorf("PUT: %d %s, %d drains begun", code, body, began)
	}
	d.Gate.Drain() // the door, after its delay
	if _, body := ask(t, d, here, "GET", ops.DrainPath, ""); !strings.Contains(body, `"draining":true,"in_flight":1`) {
		t.Errorf("while it drains: %s", body)
	}
}
