package nats

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"
)

// door is a forwarder in front of a transport.
type door struct {
	t        *testing.T
	url      string
	breakers *breaker.Set
	reg      *prometheus.Registry
}

func openDoor(t *testing.T, tr *Transport, workers ...*fleet.Worker) *door {
	t.Helper()
	var store fleet.Store
	fleet.NewFeed(&store).Replace(workers)
	d := &door{t: t, breakers: breaker.NewSet(breaker.DefaultConfig()), reg: prometheus.NewRegistry()}
	pc := picker.DefaultConfig()
	pc.Seed = 1
	p, err := picker.New(pc, &store, kvindex.New(kvindex.DefaultConfig()), d.breakers)
	if err != nil {
		t.Fatal(err)
	}
	preparer := prompt.NewPreparer(prompt.Config{}, nil)
	server, err := forward.New(forward.DefaultConfig(), forward.Deps{
		Picker: p, Store: &store, Preparer: func() *prompt.Preparer { return preparer },
		Transports: map[string]forward.Transport{"nats": tr}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Register(d.reg); err != nil {
		t.Fatal(err)
	}
	if err := d.breakers.Register(d.reg); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	t.Cleanup(web.Close)
	d.url = web.URL
	return d
}

// ask posts a chat request and returns status and body.
func (d *door) ask(stream bool) (int, http.Header, string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.url+"/v1/chat/completions", strings.NewReader(string(chat(3, stream).Body)))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// trips returns how often any circuit has opened.
func (d *door) trips() float64 {
	d.t.Helper()
	all, err := d.reg.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	n := 0.0
	for _, f := range all {
		if strings.Contains(f.GetName(), "breaker_trips") {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

func TestTheForwarderRetriesElsewhereAndBlamesOnlyTheGuilty(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	for _, tc := range []struct {
		name  string
		spoil func(bad *simengine.Engine) error
		trips bool // the bad worker's circuit opens
	}{
		{"a deaf worker", func(e *simengine.Engine) error { return e.SetDeaf(true) }, true},
		{"an engine that fails", func(e *simengine.Engine) error { return e.SetFault(simengine.Fault{Mode: "status:500"}) }, true},
		{"an engine that is full", func(e *simengine.Engine) error { return e.SetFault(simengine.Fault{Mode: "status:429"}) }, false},
		{"an engine that is closed", func(e *simengine.Engine) error { return e.SetFault(simengine.Fault{Mode: "refuse"}) }, true},
	} {
		for _, stream := range []bool{true, false} {
			good, bad := engine(t, broker.URL, nil), engine(t, broker.URL, nil)
			if err := tc.spoil(bad); err != nil {
				t.Fatal(err)
			}
			d := openDoor(t, start(t, broker.URL, nil), good.Worker(), bad.Worker())
			for range 20 {
				if status, _, body := d.ask(stream); status != http.StatusOK || stream != strings.HasSuffix(body, "[DONE]\n\n") {
					t.Fatalf("%s, stream %v: status %d, %q", tc.name, stream, status, body)
				}
			}
			if got := d.trips(); (got > 0) != tc.trips {
				t.Errorf("%s, stream %v: %v trips", tc.name, stream, got)
			}
		}
	}
}

func TestTheForwarderTellsABrokerFromItsWorkers(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	one, two := engine(t, broker.URL, nil), engine(t, broker.URL, nil)
	tr := start(t, broker.URL, nil)
	d := openDoor(t, tr, one.Worker(), two.Worker())
	broker.Stop(t)
	testkit.Until(t, "the loss", func() bool { return !tr.Connected() })
	for range 10 {
		if status, head, body := d.ask(true); status != http.StatusServiceUnavailable || head.Get("Retry-After") == "" {
			t.Fatalf("without a broker: status %d, %v, %q; want 503 with Retry-After", status, head, body)
		}
	}
	if got := d.trips(); got != 0 {
		t.Errorf("%v circuits opened for the broker's fault", got)
	}
	broker.Start(t)
	testkit.Until(t, "service", func() bool { status, _, _ := d.ask(true); return status == http.StatusOK })
	if n := testutil.ToFloat64(tr.metrics.connects); n != 2 {
		t.Errorf("%v connections, want 2", n)
	}
}

// TestAnObjectThatIsCutIsNoAnswer: the worker's client took the end of the engine's
// connection for the end of the answer, and its last frame says 200.
func TestAnObjectThatIsCutIsNoAnswer(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, nil)
	if err := e.SetFault(simengine.Fault{Mode: "close_delim_cut"}); err != nil {
		t.Fatal(err)
	}
	d := openDoor(t, start(t, broker.URL, nil), e.Worker())
	if status, _, body := d.ask(false); status != http.StatusBadGateway || !strings.Contains(body, "upstream_stream_truncated") {
		t.Errorf("status %d, %q; want 502", status, body)
	}
}

// TestNobodyIsBlamedForComingBackLaterThanTheForwarder: after an outage of the
// broker each client comes back in its own time.
func TestNobodyIsBlamedForComingBackLaterThanTheForwarder(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	e := engine(t, broker.URL, nil)
	if err := e.SetDeaf(true); err != nil {
		t.Fatal(err)
	}
	tr := start(t, broker.URL, nil)
	broker.Restart(t)
	testkit.Until(t, "a new connection", func() bool { return testutil.ToFloat64(tr.metrics.connects) == 2 && tr.Connected() })
	d := openDoor(t, tr, e.Worker())
	for range 5 {
		status, head, body := d.ask(true)
		if status != http.StatusServiceUnavailable || head.Get("Retry-After") == "" || head.Get("X-Should-Retry") != "" {
			t.Errorf("status %d, header %v, %q; want 503 with Retry-After", status, head, body)
		}
	}
	if got := d.trips(); got != 0 {
		t.Errorf("%v circuits opened for the broker's fault", got)
	}
	l := tr.link.Load()
	if l.gather = (time.Time{}); d.trips() == 0 {
		for range 5 {
			d.ask(true)
		}
	}
	if got := d.trips(); got == 0 {
		t.Error("a worker that stays away is never blamed")
	}
}
