package plugins_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/plugins/discovery/etcd"
	natstransport "pointsman/plugins/transport/nats"
)

// Dynamo 8182: a worker takes a request and is killed before it runs. The request
// is repeated no later than a second after the worker's lease has ended, not after
// 900 s of silence: whether the broker can tell that the worker is gone, or, because
// something still holds its subscription, only the lease does.
func TestDynamo8182AKilledWorkersRequestIsRepeatedWithItsLease(t *testing.T) {
	const lease = 2 * time.Second
	store, broker := testfleet.StartEtcd(t, nil), testfleet.StartNATS(t, nil)
	run := func(f func(context.Context) error) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- f(ctx) }()
		t.Cleanup(func() { cancel(); <-ended })
	}
	ec := etcd.DefaultConfig()
	ec.Endpoints = store.Endpoint
	source, err := etcd.New(ec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	var workers fleet.Store
	run(func(ctx context.Context) error { return workers.Run(ctx, source) })
	for _, probed := range []bool{true, false} {
		nc := natstransport.DefaultConfig()
		if nc.Broker.Server = broker.URL; !probed {
			nc.ProbeInterval = 0
		}
		tr, err := natstransport.New(nc, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		run(tr.Run)
		start := func() *simengine.Engine {
			cfg := simengine.DefaultConfig()
			cfg.KV.Port, cfg.NATS.Server = -1, broker.URL
			cfg.Etcd.Endpoint, cfg.Etcd.TTL = store.Endpoint, lease
			e, failed := simengine.Start(context.WithoutCancel(t.Context()), cfg)
			if failed != nil {
				t.Fatal(failed)
			}
			t.Cleanup(e.Kill)
			<-e.Subscribed()
			return e
		}
		a, b := start(), start()
		if err = a.SetFault(simengine.Fault{Mode: "hang_head"}); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "the workers and the broker", func() bool {
			return workers.Snapshot().Worker(a.ID()) != nil && workers.Snapshot().Worker(b.ID()) != nil && tr.Connected()
		})
		p, err := picker.New(picker.DefaultConfig(), &workers, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
		if err != nil {
			t.Fatal(err)
		}
		cfg := forward.DefaultConfig()
		cfg.Mode, cfg.DrainDelay = forward.Direct, 0
		server, err := forward.New(cfg, forward.Deps{
			Picker: p, Store: &workers, Transports: map[string]forward.Transport{"nats": tr}, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err = server.Register(prometheus.NewRegistry()); err != nil {
			t.Fatal(err)
		}
		door := httptest.NewUnstartedServer(nil)
		run(func(ctx context.Context) error { return server.Serve(ctx, door.Listener) })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+door.Listener.Addr().String()+requests[1].path, strings.NewReader(requests[1].body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Worker-Instance-Id", a.ID())
		killed := time.Now()
		type answer struct {
			*http.Response
			err error
		}
		answered := make(chan answer, 1)
		go func() {
			resp, failed := http.DefaultClient.Do(req) //nolint:bodyclose // below
			answered <- answer{resp, failed}
		}()
		testkit.Until(t, "the request at the worker", func() bool { return len(a.Receipts()) > 0 })
		a.Kill()
		resp := <-answered
		if resp.err != nil {
			t.Fatal(resp.err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(body), "data: [DONE]\n\n") || resp.Header.Get("X-Worker-Instance-Id") != b.ID() {
			t.Errorf("probes %v: %d %s %v", probed, resp.StatusCode, body, err)
		}
		// etcd ends a lease up to a second late.
		if took := time.Since(killed); took > 2*lease+2*time.Second {
			t.Errorf("probes %v: repeated after %v", probed, took)
		}
		if n := len(b.Receipts()); n != 1 {
			t.Errorf("probes %v: %d receipts at the other worker", probed, n)
		}
		b.Kill()
	}
}
