package forward_test

import (
	"net"
	"testing"
	"time"

	"pointsman/forward"
	"pointsman/reports"
)

// A request is counted for its picker while it is at the worker, and its end told.
func TestARequestIsCountedForItsPicker(t *testing.T) {
	tally := reports.NewTally(reports.DefaultConfig(), "f")
	var during reports.Report
	w := newWorld(t, []script{func(c net.Conn, r receipt) bool {
		tally.Collect(time.Now(), &during)
		return good(c, r)
	}}, direct, func(_ *forward.Config, d *forward.Deps) { d.Reports = tally })
	got := w.do(call{body: chatBody, header: map[string]string{"X-Worker-Instance-Id": "w1", reports.Header: "A;n=7;p=100;m=40;a=60"}})
	if got.status != 200 {
		t.Fatalf("status %d", got.status)
	}
	w.settled(1)
	waits := reports.Load{Requests: 1, Waiting: 1, PrefillTokens: 40, ActiveTokens: 60}
	if len(during.Workers) != 1 || during.Workers[0].ID != "w1" || during.Workers[0].ByPicker["A"] != waits {
		t.Errorf("while it ran: %+v", during.Workers)
	}
	if sent := w.engines[0].got()[0].head.Header.Get(reports.Header); sent != "" {
		t.Errorf("the engine was sent %q", sent)
	}
	var after reports.Report
	if !tally.Collect(time.Now(), &after) || len(after.Done) != 1 {
		t.Fatalf("its end: %+v", after)
	}
	if d := after.Done[0]; d.Picker != "A" || d.Pick != 7 || d.Status != 200 {
		t.Errorf("its end: %+v", d)
	}
	if l := after.Workers[0]; !l.Total.IsZero() || l.Work.Millis != 0 {
		t.Errorf("after an unary answer: %+v", l)
	}
}
