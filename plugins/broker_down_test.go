package plugins_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	natstransport "pointsman/plugins/transport/nats"
)

// In a mixed fleet a broker that is down takes nobody along who is not behind it.
func TestWithoutABrokerTheWorkersOverHTTPServe(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	cfg := natstransport.DefaultConfig()
	cfg.Broker.Server = broker.URL
	tr, err := natstransport.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	overNATS := func(c *simengine.Config) { c.NATS.Server = broker.URL }
	worlds := map[string]*pairs{}
	for _, kind := range []string{"mixed", "vllm-nixl", "sglang-bootstrap"} {
		p := newPairs(t, forward.Auto, map[string]forward.Transport{"nats": tr})
		edits := []func(*simengine.Config){nil, overNATS, overNATS, overNATS, overNATS}
		for _, edit := range edits {
			if kind == "mixed" {
				p.add(fleet.Mixed, "", edit)
				continue
			}
			p.add(fleet.Prefill, kind, edit)
			p.add(fleet.Decode, kind, edit)
		}
		for _, e := range p.engines {
			if ready := e.Subscribed(); ready != nil {
				<-ready
			}
		}
		worlds[kind] = p
	}
	broker.Stop(t)
	testkit.Until(t, "the loss of the broker noticed", func() bool { return !tr.Connected() })
	for kind, p := range worlds {
		for i := range 12 {
			r := requests[i%len(requests)]
			if status, body := p.ask(r.path, r.body); status != 200 || strings.Contains(body, `"error"`) {
				t.Errorf("%s: request %d: %d %s", kind, i, status, body)
			}
		}
		served := 0
		for i, e := range p.engines {
			n := len(e.Receipts())
			if served += n; n > 0 && e.Worker().Transport == "nats" {
				t.Errorf("%s: engine %d got %d requests without a broker", kind, i, n)
			}
		}
		if served < 12 {
			t.Errorf("%s: %d receipts for 12 requests", kind, served)
		}
	}
}
