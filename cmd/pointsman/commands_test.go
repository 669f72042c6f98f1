package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"pointsman/picker"
)

// run dispatches args and returns what came out.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := dispatch(t.Context(), args, &out, io.Discard)
	return out.String(), err
}

// mustSay fails the test for each want that text lacks.
func mustSay(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

func TestHelpOfEveryCommandSaysWhatItIsFor(t *testing.T) {
	out, err := run(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands() {
		mustSay(t, out, c.name, c.short)
		help, err := run(t, c.name, "--help")
		if err != nil && !errors.Is(err, pflag.ErrHelp) {
			t.Errorf("%s --help: %v", c.name, err)
		}
		mustSay(t, help, c.name, "usage: pointsman "+c.name)
	}
}

func TestWhatIsNotACommandOrAFlagIsAnError(t *testing.T) {
	for _, args := range [][]string{{"dance"}, {"explain", "now"}, {"explain", "--dance"}, {"bench", "dance"}, {"demo", "--workers", "1"}} {
		if _, err := run(t, args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// serve answers each path with a text; other paths are 404.
func serve(t *testing.T, pages map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if r.Header.Get("Authorization") == "Bearer wrong" {
			http.Error(w, "ask from the same machine", http.StatusForbidden)
			return
		}
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

const twoPicks = `{"picks":[
 {"time":"2026-01-02T03:04:06Z","request_id":"new","model":"m","policy":"kv-aware","reason":"exact","chosen":"b:1","prompt_tokens":100,"hit_tokens":96,
  "candidates":[
   {"worker_id":"a:1","rank":-1,"cost":2000,"hit":0,"miss":100,"active":7,"requests":1,"mode":"exact","terms":[{"scorer":"kv-overlap","cost":1993},{"scorer":"active","cost":7}]},
   {"worker_id":"c:1","rank":-1,"excluded":"circuit open","mode":"none"},
   {"worker_id":"b:1","rank":2,"cost":80,"hit":96,"miss":4,"chosen":true,"requests":3,"mode":"predicted"}]},
 {"time":"2026-01-02T03:04:05Z","request_id":"old","model":"other","policy":"kv-aware","error":"no active worker","candidates":[]}]}`

func TestExplainPrintsThePicksTheNewestLastAndTheCheapestFirst(t *testing.T) {
	out, err := run(t, "explain", "--url", serve(t, map[string]string{"/debug/picks": twoPicks}))
	if err != nil {
		t.Fatal(err)
	}
	mustSay(t, out, "refused: no active worker", "kv-aware chose b:1: 96 of 100 prompt tokens believed there (exact tokens, reason exact)",
		"> b:1#dp2", "circuit open", "kv-overlap 1993 + active 7", "predicted")
	for _, order := range [][2]string{{"  old  ", "  new  "}, {"> b:1#dp2", "a:1"}, {"a:1", "c:1"}} {
		if strings.Index(out, order[0]) > strings.Index(out, order[1]) {
			t.Errorf("%q comes after %q:\n%s", order[0], order[1], out)
		}
	}
}

func TestExplainSelects(t *testing.T) {
	url := serve(t, map[string]string{"/debug/picks": twoPicks})
	for _, tt := range []struct {
		args      []string
		want, not string
	}{
		{[]string{"-n", "1"}, "  new  ", "  old  "},
		{[]string{"--request", "old"}, "  old  ", "  new  "},
		{[]string{"--model", "other"}, "  old  ", "  new  "},
		{[]string{"--model", "none"}, "no such pick among the 2", "  new  "},
	} {
		out, err := run(t, append([]string{"explain", "--url", url}, tt.args...)...)
		if err != nil || !strings.Contains(out, tt.want) || strings.Contains(out, tt.not) {
			t.Errorf("%v: %v:\n%s", tt.args, err, out)
		}
	}
}

func TestExplainPassesOnWhatTheProgramRefuses(t *testing.T) {
	url := serve(t, map[string]string{"/debug/picks": `{`})
	_, err := run(t, "explain", "--url", url, "--admin-token", "wrong")
	if err == nil || !strings.Contains(err.Error(), "ask from the same machine") {
		t.Errorf("error %v", err)
	}
	if _, err := run(t, "explain", "--url", url); err == nil {
		t.Error("half a JSON object was accepted")
	}
	if _, err := run(t, "explain", "--url", "127.0.0.1:1"); err == nil {
		t.Error("nobody answered, and no error")
	}
}

func TestASentenceForEveryWayAPickIsMade(t *testing.T) {
	for _, tt := range []struct {
		record picker.Record
		want   string
	}{
		{picker.Record{Policy: "p", Chosen: "w", Approx: true}, "approximated"},
		{picker.Record{Policy: "p", Chosen: "w", ByLoad: true}, "by load alone"},
		{picker.Record{Policy: "p", Chosen: "w", AllOpen: true}, "every circuit was open"},
	} {
		mustSay(t, sentence(&tt.record), tt.want)
	}
}

const (
	workersPage = `{"workers":[{"worker_id":"127.0.0.1:30000","model_name":"m","engine":"vllm","status":"active","disagg_mode":"mixed","request_transport":"http","kv_block_size":16,"kv_events_endpoint":"tcp://a:2"},
 {"worker_id":"b:1","model_name":"m","engine":"sglang","status":"draining","disagg_mode":"mixed","request_transport":"nats","kv_block_size":null,"kv_events_endpoint":null}]}`
	healthyMetrics = `infera_active_workers{disagg_mode="mixed"} 2
pointsman_fleet_connected{source="etcd"} 1
pointsman_fleet_staleness_seconds 0
pointsman_kvindex_mode{worker_id="127.0.0.1:30000"} 2
pointsman_kvindex_mode{worker_id="b:1"} 1
infera_policy_cache_view_size{worker_id="127.0.0.1:30000"} 321
infera_router_worker_breaker_state{worker_id="127.0.0.1:30000"} 0
infera_router_worker_breaker_state{worker_id="b:1"} 1
pointsman_audit_state{model="m",worker_id="127.0.0.1:30000",form="chat",state="exact",reason=""} 1
pointsman_audit_state{model="m",worker_id="127.0.0.1:30000",form="multimodal",state="off",reason="multimodal"} 1
pointsman_audit_state{model="m",worker_id="b:1",form="tools",state="drifting",reason="hit"} 1
pointsman_audit_canary{model="m",worker_id="b:1"} 1
`
	sickMetrics = `infera_active_workers{disagg_mode="mixed"} 0
pointsman_fleet_connected{source="etcd"} 0
pointsman_fleet_staleness_seconds 77
pointsman_fleet_records_skipped_total 3
pointsman_kvindex_mode{worker_id="b:1"} 0
pointsman_kvindex_unknown_parents_total{worker_id="b:1"} 50
infera_router_worker_breaker_state{worker_id="b:1"} 2
pointsman_audit_state{model="m",worker_id="b:1",form="completions",state="drifting",reason="count"} 1
pointsman_audit_canary{model="m",worker_id="b:1"} 0
`
)

func TestFleetPrintsWhoIsThereAndWhatIsThoughtOfThem(t *testing.T) {
	url := serve(t, map[string]string{"/v1/workers": workersPage, "/metrics": healthyMetrics})
	out, err := run(t, "fleet", "--url", url)
	if err != nil || strings.Contains(out, "CIRCUIT") {
		t.Errorf("%v:\n%s", err, out)
	}
	mustSay(t, out, "127.0.0.1:30000", "sglang", "draining", "tcp://a:2", "nats", "?", "2 workers")
	out, err = run(t, "fleet", "--url", url, "--metrics", url)
	if err != nil {
		t.Error(err)
	}
	mustSay(t, out, "exact", "321", "half-open", "predicted", "TOKENS", "drifting")
	for _, args := range [][]string{{"--url", "127.0.0.1:1"}, {"--url", url, "--metrics", "127.0.0.1:1"}} {
		if _, err := run(t, append([]string{"fleet"}, args...)...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

// healthServer serves gRPC health; names not in states are unknown.
func healthServer(t *testing.T, states map[string]healthpb.HealthCheckResponse_ServingStatus) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	service := health.NewServer()
	for name, state := range states {
		service.SetServingStatus(name, state)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, service)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return lis.Addr().String()
}

func allServing() map[string]healthpb.HealthCheckResponse_ServingStatus {
	states := map[string]healthpb.HealthCheckResponse_ServingStatus{}
	for _, name := range healthNames() {
		states[name] = healthpb.HealthCheckResponse_SERVING
	}
	return states
}

func TestDoctorFindsNothingWrongWithAHealthyDeployment(t *testing.T) {
	url := serve(t, map[string]string{"/ready": "{}", "/metrics": healthyMetrics, "/v1/workers": workersPage})
	out, err := run(t, "doctor", "--health", healthServer(t, allServing()), "--epp", url, "--forwarder", url)
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	mustSay(t, out, `service "inference-extension": serving`, "EPP is ready", "EPP has 2 active workers",
		"follows the cache events of 1 workers", `note  EPP knows the caches of 1 workers only as "predicted": b:1`, "is ready and knows 2 workers",
		"counts tokens as the engines do in 1 kinds", "note  EPP foresees other hits than the engine finds for tools requests for m on b:1", "nothing is wrong")
}

func TestDoctorNamesEveryFaultAndWhatToDo(t *testing.T) {
	states := allServing()
	states["readiness"] = healthpb.HealthCheckResponse_NOT_SERVING
	url := serve(t, map[string]string{"/metrics": sickMetrics})
	out, err := run(t, "doctor", "--health", healthServer(t, states), "--epp", url, "--forwarder", url)
	if !errors.Is(err, errSick) {
		t.Errorf("error %v", err)
	}
	mustSay(t, out, `WRONG EPP health, service "readiness": NOT_SERVING`, "WRONG EPP is not ready", "WRONG EPP has no active worker",
		"--etcd-prefix", "WRONG EPP has lost its discovery backend", "WRONG EPP had no news of the fleet for 77 s", "note  EPP could not use 3 worker records",
		`only as "none": b:1`, "dropped 50 of 0 cache events", "WRONG EPP has opened the circuit of b:1",
		"WRONG EPP and the engine count different tokens (count) in completions requests for m on b:1", "WRONG EPP has another tokenizer for m than b:1 registered", "WRONG forwarder")
}

func TestDoctorSaysWhenNobodyAnswers(t *testing.T) {
	out, err := run(t, "doctor", "--health", "127.0.0.1:1", "--epp", "http://127.0.0.1:1", "--patience", "300ms")
	if !errors.Is(err, errSick) {
		t.Errorf("error %v", err)
	}
	mustSay(t, out, "is the EPP running", "is this its --metrics-port")
	url := serve(t, map[string]string{"/ready": "{}", "/metrics": "{}", "/v1/workers": "{"})
	out, _ = run(t, "doctor", "--health", healthServer(t, nil), "--epp", url, "--forwarder", url)
	mustSay(t, out, "something else answers on that port")
}

func TestAnInterruptedCommandEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	block := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-block }))
	defer server.Close()
	defer close(block)
	if err := dispatch(ctx, []string{"explain", "--url", server.URL}, io.Discard, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
