package forward_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/forward"
)

func (w *world) get(path string) reply {
	w.t.Helper()
	return w.do(call{method: "GET", path: path})
}

func TestTheFleetIsListed(t *testing.T) {
	w := newWorld(t, []script{good, good, good})
	workers := w.fleet()
	workers[1].Model, workers[1].KVEvents, workers[1].DPSize = "org/other", "tcp://h:5557", 2
	workers[1].Protocol, workers[1].Params = "sglang-mooncake", json.RawMessage(`{"bootstrap_port":8998}`)
	workers[2].Model, workers[2].Status, workers[2].BlockSize = "hidden", fleet.Draining, 0
	w.feed.Replace(workers)

	var models struct {
		Object string
		Data   []struct {
			ID, Object string
			Created    int64
			OwnedBy    string `json:"owned_by"`
		}
	}
	got := w.get("/v1/models")
	fatal(t, json.Unmarshal([]byte(got.body), &models))
	if models.Object != "list" || len(models.Data) != 2 || models.Data[0].ID != model || models.Data[1].ID != "org/other" ||
		models.Data[0].Object != "model" || models.Data[0].OwnedBy != "infera" || models.Data[0].Created < 1e9 {
		t.Errorf("models %s", got.body)
	}
	if got = w.get("/v1/models/org/other"); got.status != 200 || !strings.Contains(got.body, `"id":"org/other"`) {
		t.Errorf("one model: %d %s", got.status, got.body)
	}
	if got = w.get("/v1/models/hidden"); got.status != 404 || errorOf(t, got).Code != "model_not_found" {
		t.Errorf("no model: %d %s", got.status, got.body)
	}

	var list struct{ Workers []map[string]any }
	got = w.get("/v1/workers")
	fatal(t, json.Unmarshal([]byte(got.body), &list))
	if len(list.Workers) != 3 {
		t.Fatalf("workers %s", got.body)
	}
	two, three := list.Workers[1], list.Workers[2]
	for k, want := range map[string]any{
		"worker_id": "w2", "url": workers[1].URL, "model_name": "org/other", "engine": "vllm", "status": "active",
		"disagg_mode": "mixed", "kv_events_endpoint": "tcp://h:5557", "kv_block_size": 16.0, "dp_rank": nil, "dp_size": 2.0,
		"request_transport": "http",
	} {
		if two[k] != want {
			t.Errorf("%s is %v, want %v", k, two[k], want)
		}
	}
	meta, _ := json.Marshal(two["disagg_meta"])
	if string(meta) != `{"params":{"bootstrap_port":8998},"protocol":"sglang-mooncake"}` {
		t.Errorf("disagg_meta %s", meta)
	}
	if three["status"] != "draining" || three["kv_block_size"] != nil || three["kv_events_endpoint"] != nil || three["disagg_meta"] != nil {
		t.Errorf("worker %v", three)
	}
	if got := w.get("/health"); got.status != 200 || got.body != `{"status":"ok","active_workers":2}` {
		t.Errorf("health %d %s", got.status, got.body)
	}
}

func TestReadyTellsWhyItIsNot(t *testing.T) {
	var broken error
	w := newWorld(t, []script{good}, func(_ *forward.Config, d *forward.Deps) {
		d.Ready = func() error { return broken }
	})
	if got := w.get("/ready"); got.status != 200 {
		t.Errorf("ready: %d %s", got.status, got.body)
	}
	expect := func(reason string) {
		t.Helper()
		got := w.get("/ready")
		if got.status != 503 || !strings.Contains(got.body, reason) {
			t.Errorf("want %q: %d %s", reason, got.status, got.body)
		}
		if got := w.get("/health"); got.status != 200 {
			t.Errorf("health follows readiness: %d", got.status)
		}
	}
	broken = errors.New("etcd is down")
	expect("etcd is down")
	broken = nil
	workers := w.fleet()
	workers[0].Transport = "nats"
	w.feed.Replace(workers)
	expect("no active worker")
	w.feed.Replace(nil)
	expect("no active worker")
	w.feed.Replace(w.fleet())
	w.server.Drain()
	expect("draining")
	if got := w.do(call{body: chatBody}); got.status != 200 {
		t.Errorf("a draining forwarder refused a request: %d", got.status)
	}

	empty := newWorld(t, nil, func(_ *forward.Config, d *forward.Deps) { d.Store = new(fleet.Store) })
	if got := empty.get("/ready"); got.status != 503 || !strings.Contains(got.body, "not known yet") {
		t.Errorf("before the first listing: %d %s", got.status, got.body)
	}
}

func TestRoutesAreAnsweredHere(t *testing.T) {
	below := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	w := newWorld(t, []script{good}, func(_ *forward.Config, d *forward.Deps) {
		d.Routes = map[string]http.Handler{"/metrics": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "ours")
		}), "/admin/": below, "/admin/deeper/": http.NotFoundHandler()}
	})
	if got := w.get("/metrics"); got.body != "ours" {
		t.Errorf("body %q", got.body)
	}
	for path, want := range map[string]int{
		"/admin/10.0.0.1:8000": 418, "/admin/[fd00::1]:8000": 418, "/admin/%5Bfd00::1%5D:8000?dp_rank=1": 418, "/admin/": 418,
		"/admin/deeper/x": 404, "/admin": 200, "/metrics/x": 200, // the worker's
	} {
		if got := w.get(path); got.status != want {
			t.Errorf("%s: %d, want %d", path, got.status, want)
		}
	}
}

func TestGatewayDrainingFinishesStreamsAndThenEndsThemVisibly(t *testing.T) {
	for name, finishes := range map[string]bool{"in time": true, "too late": false} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan struct{})
			w := newWorld(t, []script{func(c net.Conn, _ receipt) bool {
				_, _ = io.WriteString(c, sseOpen(tok0))
				if finishes {
					<-goOn
					_, _ = io.WriteString(c, chunk(tok1+done)+"0\r\n\r\n")
				}
				return true
			}}, change(func(c *forward.Config) {
				c.DrainTimeout = 10 * time.Second
				if !finishes {
					c.DrainTimeout = 100 * time.Millisecond
				}
			}))
			resp, err := w.client.Do(w.request(t.Context(), call{body: streamBody}))
			fatal(t, err)
			defer resp.Body.Close()
			first := make([]byte, len(tok0))
			_, err = io.ReadFull(resp.Body, first)
			fatal(t, err)
			stopped := make(chan error, 1)
			go func() { stopped <- w.stop() }()
			for { // accepting ends
				c, refused := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
				if refused != nil {
					break
				}
				c.Close()
			}
			close(goOn)
			rest, err := io.ReadAll(resp.Body)
			fatal(t, err)
			fatal(t, <-stopped)
			if finishes {
				if string(rest) != tok1+done {
					t.Errorf("rest %q", rest)
				}
				return
			}
			checkTerminal(t, string(rest), "gateway_draining")
		})
	}
}

// TestAnIdleConnectionOutlivesTheDrainDelay: who has not heard of the drain may be
// sending a request on it.
func TestAnIdleConnectionOutlivesTheDrainDelay(t *testing.T) {
	w := newWorld(t, []script{good}, change(func(c *forward.Config) { c.DrainDelay = time.Second }))
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	defer c.Close()
	in := bufio.NewReader(c)
	ask := func(path string) *http.Response {
		t.Helper()
		_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		fatal(t, err)
		resp, err := http.ReadResponse(in, nil)
		fatal(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		fatal(t, err)
		return resp
	}
	if resp := ask("/health"); resp.StatusCode != http.StatusOK || resp.Close { //nolint:bodyclose // ask has read it
		t.Fatalf("before the drain: %d, closing %v", resp.StatusCode, resp.Close)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	for w.do(call{method: http.MethodGet, path: "/ready"}).status == http.StatusOK { // until the drain has begun
	}
	if resp := ask("/health"); resp.StatusCode != http.StatusOK || !resp.Close { //nolint:bodyclose // ask has read it
		t.Errorf("within the delay: %d, closing %v, want an answer that is the connection's last", resp.StatusCode, resp.Close)
	}
	fatal(t, <-stopped)
}

func TestServeReportsAListenerThatFails(t *testing.T) {
	w := newWorld(t, []script{good})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	lis.Close()
	if err := w.server.Serve(context.Background(), lis); err == nil {
		t.Error("no error")
	}
}

func TestAccessLinesTellWhoServedAndNothingOfBodies(t *testing.T) {
	w := newWorld(t, []script{raw(jsonReply(500, `{"secret":"engine text"}`)), good}, direct)
	w.do(call{
		body:   strings.Replace(chatBody, "hello", "canary-prompt", 1),
		header: map[string]string{"X-Worker-Instance-Id": "w1", "Authorization": "Bearer canary-key", "X-Infera-Request-Id": "id-1"},
	})
	w.settled(1)
	fatal(t, w.stop())
	logs := w.logs.String()
	for _, want := range []string{"level=DEBUG", `msg="request finished"`, "request_id=id-1", "outcome=ok", "attempts=2", `workers="[w1 w2]"`, "status=200"} {
		if !strings.Contains(logs, want) {
			t.Errorf("no %s in %s", want, logs)
		}
	}
	for _, secret := range []string{"canary", "engine text"} {
		if strings.Contains(logs, secret) {
			t.Errorf("%s is in the log", secret)
		}
	}
}
