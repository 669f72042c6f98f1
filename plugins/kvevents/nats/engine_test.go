package nats

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/internal/broker"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
)

// A simulated engine, its relay, a broker and the subscriber: what the engine
// caches is what the index holds.
func TestTheIndexHoldsWhatAnEngineBehindItsRelayCaches(t *testing.T) {
	for _, engine := range []fleet.Engine{fleet.VLLM, fleet.SGLang} {
		t.Run(string(engine), func(t *testing.T) {
			b := testfleet.StartNATS(t, nil)
			cfg := simengine.DefaultConfig()
			cfg.Engine, cfg.Time.Scale, cfg.Cache.Capacity = engine, 100, 64
			e, err := simengine.Start(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			relay, err := simengine.StartRelay(t.Context(), simengine.RelayConfig{
				Server: b.URL, WorkerID: e.ID(), Events: e.KVEvents(), Engine: engine, Every: 10 * time.Millisecond,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(relay.Kill)
			<-relay.Ready()
			w := e.Worker()
			w.Incarnation = "1"
			v := watch(t, Config{Broker: broker.Config{Server: b.URL}, Backoff: 5 * time.Millisecond}, w)
			v.live()
			// ZMQ subscriptions travel on their own: ask until something arrives.
			for n := 0; value(v.sub.metrics.Messages) == 0; n++ {
				complete(t, e, fmt.Sprintf("probe %d ", n)+strings.Repeat("x ", 40))
			}
			for n := range 12 { // more than the cache holds: it evicts
				complete(t, e, fmt.Sprintf("prompt %d ", n)+strings.Repeat("words and words ", 30))
			}
			in := v.index.Instance(e.ID())
			testkit.Until(t, "the cache in the index", func() bool { return blocks(t, v) == e.Info().BlocksCached })
			if v.index.Mode(in, time.Now()) != kvindex.Exact {
				t.Error("the view does not count as exact")
			}
			e.ClearCache()
			testkit.Until(t, "the empty cache in the index", func() bool { return blocks(t, v) == 0 })
		})
	}
}

// blocks returns the size of the one view, by the metric that Infera has for it.
func blocks(t *testing.T, v *view) int {
	t.Helper()
	return gathered(t, v.index, "infera_policy_cache_view_size")
}

func complete(t *testing.T, e *simengine.Engine, prompt string) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"sim-model","prompt":%q,"max_tokens":1}`, prompt)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %s, %v", resp.StatusCode, answer, err)
	}
}
