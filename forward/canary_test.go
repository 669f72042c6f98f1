package forward_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/plugins"
)

// sent is a leg that a wire has carried.
type sent struct {
	worker string
	at     time.Time
	body   string
}

// wire is a transport on which every worker answers with one status; 0 never.
type wire struct {
	mu     sync.Mutex
	status int
	legs   []sent
}

func (w *wire) Do(ctx context.Context, to *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	w.mu.Lock()
	status := w.status
	w.legs = append(w.legs, sent{to.ID, time.Now(), string(req.Body)})
	w.mu.Unlock()
	if status == 0 {
		<-ctx.Done()
		return nil, &forward.Error{Stage: forward.StageDispatched, Err: context.Cause(ctx)}
	}
	body := `{"choices":[{"index":0,"message":{"content":"yes"},"finish_reason":"length"}]}`
	if status >= http.StatusBadRequest {
		body = `{"error":{"message":"no"}}`
	}
	return &forward.Response{
		Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Length: int64(len(body)),
		Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (w *wire) answer(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
}

// decodes returns the legs of a worker so far.
func (w *wire) decodes(id string) (out []sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.legs {
		if l.worker == id {
			out = append(out, l)
		}
	}
	return out
}

// canaryWorld is a forwarder of four prefill workers and one decode worker, to which
// d2 comes, in a bubble.
func canaryWorld(t *testing.T, status int) (*world, *wire) {
	t.Helper()
	w := &world{t: t, store: new(fleet.Store), reg: prometheus.NewRegistry(), logs: new(syncBuffer)}
	w.feed = fleet.NewFeed(w.store)
	bc := breaker.DefaultConfig()
	bc.PairCanary, bc.Jitter = breaker.CanaryOnRecovery, 0
	w.breakers = breaker.NewSet(bc)
	var fleetOf []*fleet.Worker
	leg := func(id string, role fleet.Role) *fleet.Worker {
		return &fleet.Worker{
			ID: id, Host: id, Port: 9000, Model: model, Engine: fleet.SGLang, Role: role, DPRank: -1, BlockSize: 16,
			Protocol: "sglang-bootstrap", Params: json.RawMessage(`{"bootstrap_addr":"10.0.0.1:8998"}`),
		}
	}
	for _, id := range []string{"p1", "p2", "p3", "p4"} {
		fleetOf = append(fleetOf, leg(id, fleet.Prefill))
	}
	w.feed.Replace(append(fleetOf, leg("d1", fleet.Decode)))
	var err error
	w.picker, err = picker.New(picker.DefaultConfig(), w.store, kvindex.New(kvindex.DefaultConfig()), w.breakers)
	fatal(t, err)
	on := &wire{status: status}
	w.server, err = forward.New(forward.DefaultConfig(), forward.Deps{
		Picker: w.picker, Store: w.store, Transports: map[string]forward.Transport{"http": on}, Connectors: plugins.Connectors,
		Log: slog.New(slog.NewTextHandler(w.logs, nil)),
	})
	fatal(t, err)
	fatal(t, w.server.Register(w.reg))
	w.feed.Put(leg("d2", fleet.Decode))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Canaries(ctx) }()
	w.stop = func() error { cancel(); return <-ended }
	return w, on
}

func TestCanariesAreBoundToOneASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, on := canaryWorld(t, http.StatusOK)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		fatal(t, w.stop())
		legs := on.decodes("d2")
		if len(legs) != 4 || len(on.decodes("d1")) != 0 {
			t.Fatalf("%d canaries on the new worker, %d on the old one, want 4 and 0", len(legs), len(on.decodes("d1")))
		}
		for i, l := range legs {
			if i > 0 && l.at.Sub(legs[i-1].at) < time.Second {
				t.Errorf("canary %d came %v behind the one before", i, l.at.Sub(legs[i-1].at))
			}
			if !strings.Contains(l.body, `"max_tokens":1`) || !strings.Contains(l.body, `"model":"m"`) || i > 0 && l.body == legs[0].body {
				t.Errorf("canary %d: %.200s", i, l.body)
			}
		}
		if n := w.count("infera_router_pair_canary_total", "result=ok"); n != 4 || w.breakers.Troubled() {
			t.Errorf("%d canaries went well, pairs not closed: %v", n, w.breakers.Troubled())
		}
		for _, name := range []string{"infera_request_duration_seconds", "pointsman_forward_attempts_total", "pointsman_forward_prefills_total"} {
			if n := w.count(name); n != 0 {
				t.Errorf("%s counts %d canaries", name, n)
			}
		}
		if held := w.picker.Held(time.Now(), 0); len(held) > 0 {
			t.Errorf("reservations left: %v", held)
		}
	})
}

func TestWhatCanariesComeTo(t *testing.T) {
	for _, tt := range []struct {
		name   string
		status int
		result string
		within time.Duration
	}{
		{"a 5xx", http.StatusInternalServerError, "failed", time.Second},
		{"a worker that has enough to do", http.StatusTooManyRequests, "failed", time.Second},
		{"a request that the engine does not take", http.StatusBadRequest, "refused", time.Second},
		{"no answer within the prefill timeout", 0, "failed", 31 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, on := canaryWorld(t, tt.status)
				time.Sleep(tt.within + 100*time.Millisecond)
				synctest.Wait()
				if n := w.count("infera_router_pair_canary_total", "result="+tt.result); n != 1 {
					t.Errorf("%d canaries are %s", n, tt.result)
				}
				if len(w.breakers.DuePairs(time.Now(), nil)) == 4 || !strings.Contains(w.logs.String(), "canary failed") {
					t.Errorf("due: %v; log: %s", w.breakers.DuePairs(time.Now(), nil), w.logs)
				}
				on.answer(http.StatusOK)
				time.Sleep(5 * time.Minute)
				if w.breakers.Troubled() {
					t.Errorf("five minutes after all is well: %v", w.breakers.OpenPairs(time.Now(), nil))
				}
				fatal(t, w.stop())
			})
		})
	}
}

func TestCanariesEndWithTheForwarder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := canaryWorld(t, 0)
		time.Sleep(3500 * time.Millisecond)
		fatal(t, w.stop())
		if n := w.count("infera_router_pair_canary_total"); n != 0 || len(w.picker.Held(time.Now(), 0)) > 0 {
			t.Errorf("%d canaries counted that this process itself has ended, held: %v", n, w.picker.Held(time.Now(), 0))
		}
	})
}
