package extproc

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/internal/testkit"
	"pointsman/reports"
)

// hidden routes a chat whose response's body the gateway does not show, until the
// gateway has ended the stream.
func (w *world) hidden() {
	w.t.Helper()
	g := w.routedChat(none)
	g.send(responseHeaders(false, ":status", "200"))
	g.unchanged(kindResponseHeaders)
	g.cancel()
	testkit.Until(w.t, "a reservation that waits for a report", func() bool { return w.server.unseen.waiting() > 0 })
}

func done(pick uint64, status int, receipt string) *reports.Done {
	return &reports.Done{
		Ref: reports.Ref{Picker: "A", Pick: pick}, Receipt: receipt, Status: status, First: time.Millisecond,
		Prompt: 100, Cached: 64, Output: 5,
	}
}

func TestAReportEndsWhatTheGatewayHides(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	w.hidden()
	if w.held() != 1 {
		t.Fatalf("%d reservations, want that of the running request", w.held())
	}
	w.server.Done(done(1, 200, "m1@"+workerID+";ok"), time.Now())
	w.server.Done(done(1, 200, "m1@"+workerID+";ok"), time.Now()) // heartbeats repeat ends
	if w.held() != 0 || w.server.unseen.waiting() != 0 {
		t.Errorf("%d reservations are left", w.held())
	}
	m := w.server.metrics
	for name, got := range map[string][2]float64{
		"usage":      {testutil.ToFloat64(m.usageCached), 64},
		"prompt":     {testutil.ToFloat64(m.usagePrompt), 100},
		"completion": {testutil.ToFloat64(m.output), 5},
		"ends":       {testutil.ToFloat64(m.reports.WithLabelValues("ok")), 1},
		"returned":   {testutil.ToFloat64(m.returned.WithLabelValues(backReport)), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %g, want %g", name, got[0], got[1])
		}
	}
	if len(w.usage) != 1 || w.usage[0].Counted != 100 {
		t.Errorf("the audit was told %+v", w.usage)
	}
}

// Off the token path the predictions are held to what the engine counted all the same:
// of a prompt that is sent twice, the second pick's hit is predicted, since a report has
// told of the first one's token, and both numbers come to the counters and the audit.
func TestPredictionsAreAuditedByReports(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	m := w.server.metrics
	w.hidden()
	w.server.First(1, time.Now())
	w.server.Done(done(1, 200, "m1@"+workerID+";ok"), time.Now())
	if hit, prompt := testutil.ToFloat64(m.usageHit), testutil.ToFloat64(m.usagePredicted); hit != 0 || prompt == 0 {
		t.Errorf("after the first: a hit of %g tokens is predicted, of %g; want 0 of some", hit, prompt)
	}
	w.hidden()
	w.server.Done(done(2, 200, "m1@"+workerID+";ok"), time.Now())
	w.hidden() // one that fails has no usage
	failed := done(3, 500, "m1@"+workerID+";origin")
	failed.Prompt, failed.Cached, failed.Output, failed.First = -1, -1, -1, 0
	w.server.Done(failed, time.Now())
	if len(w.usage) < 2 {
		t.Fatalf("the audit was told %d times", len(w.usage))
	}
	second := w.usage[1]
	if second.Hit == 0 || second.Cached != 64 || second.Counted != 100 || second.Tokens == 0 || second.Worker != workerID {
		t.Errorf("the audit was told %+v of the second", second)
	}
	for name, got := range map[string][2]float64{
		"predicted hits":    {testutil.ToFloat64(m.usageHit), float64(second.Hit)},
		"predicted prompts": {testutil.ToFloat64(m.usagePredicted), float64(w.usage[0].Tokens + second.Tokens)},
		"counted hits":      {testutil.ToFloat64(m.usageCached), 128},
		"requests":          {testutil.ToFloat64(m.usageRequests), 2},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %g, want %g", name, got[0], got[1])
		}
	}
}

func TestReportedFailuresTripTheCircuit(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	for i := range uint64(4) {
		g := w.routedChat(none) // the gateway sends no response headers either
		g.cancel()
		testkit.Until(w.t, "a reservation that waits for a report", func() bool { return w.server.unseen.waiting() > 0 })
		d := done(i+1, 502, "m1@"+workerID+";refused")
		d.First = 0
		w.server.Done(d, time.Now())
	}
	if w.breakers.Circuit(workerID).Closed() {
		t.Error("four requests that the worker refused did not open its circuit")
	}
}

func TestWhatNobodyReportsComesBackAfterAWhile(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	w.hidden()
	now := time.Now()
	w.server.Tick(now.Add(w.server.cfg.Load().ReservationTTL - time.Second))
	if w.held() != 1 {
		t.Error("it came back before its time")
	}
	w.server.Tick(now.Add(w.server.cfg.Load().ReservationTTL + time.Second))
	if w.held() != 0 {
		t.Error("it never comes back")
	}
}

func TestWhatTheForwardersDoNotHaveComesBack(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	have, at := 1, time.Now()
	w.server.deps.Mine = func(worker string, rank int, _ time.Time) (int, time.Time, bool) {
		return have, at, worker == workerID && rank == -1
	}
	w.hidden()
	now := time.Now()
	at = now.Add(10 * time.Minute)
	w.server.Tick(at)
	if w.held() != 1 {
		t.Error("a request that runs for ten minutes was given back")
	}
	have = 0
	w.server.Tick(at)
	if w.held() != 0 {
		t.Error("the forwarder's last word was lost, and the reservation with it")
	}
}

func TestAnEndReportedBeforeTheStreamEndsCounts(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	g := w.routedChat(none)
	w.server.Done(done(1, 200, "m1@"+workerID+";ok"), time.Now())
	if w.held() != 1 {
		t.Error("given back while the stream is open")
	}
	g.cancel()
	testkit.Until(w.t, "the reservation given back", func() bool { return w.held() == 0 })
}
