package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"pointsman/internal/stack"
)

const doctorText = `doctor checks a running deployment: the EPP's gRPC health under every name that
gateways ask for, its metrics, how fresh its view of the fleet and of the caches
is, and whether each forwarder is ready. It exits 1 when something is wrong, and
says what to do about it.`

// errSick says that a check failed.
var errSick = errors.New("something is wrong")

// healthNames returns the gRPC services that data planes ask for (the Endpoint
// Picker Protocol's, the reference EPP's and Infera's).
func healthNames() []string {
	return []string{"", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension"}
}

// staleAfter is how long a view of the fleet may be without news of its source.
const staleAfter = 30

// patient is what the doctor looks at.
type patient struct {
	health, epp, token string
	forwarders         []string
	patience           time.Duration
}

// examination collects findings.
type examination struct {
	out  io.Writer
	sick int
}

// good writes what is as it should be.
func (x *examination) good(format string, args ...any) {
	_, _ = fmt.Fprintf(x.out, "ok    "+format+"\n", args...)
}

// note writes what is allowed, but may surprise.
func (x *examination) note(advice, format string, args ...any) {
	_, _ = fmt.Fprintf(x.out, "note  "+format+"\n      %s\n", append(args, advice)...)
}

// bad writes what is wrong, and what to do about it.
func (x *examination) bad(advice, format string, args ...any) {
	x.sick++
	_, _ = fmt.Fprintf(x.out, "WRONG "+format+"\n      %s\n", append(args, advice)...)
}

func doctor(ctx context.Context, args []string, out, _ io.Writer) error {
	p := patient{patience: 5 * time.Second}
	fs := newFlags("doctor", doctorText, out)
	fs.StringVar(&p.health, "health", "127.0.0.1:9003", "host:port of the EPP's gRPC health (its --grpc-health-port)")
	fs.StringVar(&p.epp, "epp", "http://127.0.0.1:9090", "the EPP's metrics address (its --metrics-port); empty skips it")
	fs.StringSliceVar(&p.forwarders, "forwarder", nil, "address of a forwarder; may be repeated. Empty asks for none")
	fs.StringVar(&p.token, "admin-token", "", "the programs' --admin-token, needed from another machine")
	fs.DurationVar(&p.patience, "patience", p.patience, "longest wait for each answer")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	x := &examination{out: out}
	p.checkHealth(ctx, x)
	if p.epp != "" {
		p.checkProgram(ctx, x, "EPP", p.epp)
	}
	for _, f := range p.forwarders {
		p.checkForwarder(ctx, x, f)
	}
	if x.sick > 0 {
		return fmt.Errorf("doctor: %w: %d findings", errSick, x.sick)
	}
	x.good("nothing is wrong")
	return nil
}

// checkHealth asks for every health name.
func (p *patient) checkHealth(ctx context.Context, x *examination) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	conn, err := grpc.NewClient(p.health, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		x.bad("give host:port to --health", "EPP health: %v", err)
		return
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	for _, name := range healthNames() {
		resp, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: name})
		switch {
		case err != nil:
			x.bad("is the EPP running, and is this its --grpc-health-port? A gateway that gets no answer takes the EPP for dead",
				"EPP health at %s, service %q: %v", p.health, name, err)
			return // the others would say the same
		case resp.GetStatus() != healthpb.HealthCheckResponse_SERVING:
			x.bad("it is draining, or has not found its fleet yet: see its log, and GET /ready on its --metrics-port",
				"EPP health, service %q: %s", name, resp.GetStatus())
		default:
			x.good("EPP health, service %q: serving", name)
		}
	}
}

// checkProgram looks at a program's readiness and metrics.
func (p *patient) checkProgram(ctx context.Context, x *examination, what, admin string) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	ask := newAsker(p.token)
	if _, err := ask.get(ctx, admin, "/ready"); err != nil {
		x.bad("the answer says why; until then a gateway should not send requests", "%s is not ready: %v", what, err)
	} else {
		x.good("%s is ready", what)
	}
	raw, err := ask.get(ctx, admin, "/metrics")
	if err != nil {
		x.bad("is this its --metrics-port? 0 turns the endpoint off", "%s metrics: %v", what, err)
		return
	}
	metrics, err := stack.ParseMetrics(raw)
	if err != nil {
		x.bad("something else answers on that port", "%s metrics: %v", what, err)
		return
	}
	checkFleet(x, what, metrics)
	checkPool(x, metrics)
	checkIndex(x, what, metrics)
	checkCircuits(x, what, metrics)
	checkTokens(x, what, metrics)
}

// checkFleet looks at what discovery says.
func checkFleet(x *examination, what string, m stack.Metrics) {
	switch n := m.Sum("infera_active_workers", nil); n {
	case 0:
		x.bad("do the workers register under the same --etcd-prefix (or label selector), and are they active? pointsman fleet lists what was found",
			"%s has no active worker", what)
	default:
		x.good("%s has %.0f active workers", what, n)
	}
	m.Each("pointsman_fleet_connected", func(_ map[string]string, v float64) {
		if v == 0 {
			x.bad("requests go on with the last known fleet; new and lost workers are not noticed until the discovery backend answers again",
				"%s has lost its discovery backend", what)
		}
	})
	if stale := m.Sum("pointsman_fleet_staleness_seconds", nil); stale > staleAfter {
		x.bad("is the discovery backend reachable from there?", "%s had no news of the fleet for %.0f s", what, stale)
	}
	if skipped := m.Sum("pointsman_fleet_records_skipped_total", nil); skipped > 0 {
		x.note("the log names each record and its fault once", "%s could not use %.0f worker records", what, skipped)
	}
}

// checkPool looks at what the InferencePool says of its picker.
func checkPool(x *examination, m stack.Metrics) {
	if m.Sum("pointsman_inferencepool_picker_port_mismatch", nil) > 0 {
		x.note("fine if the picker's Service maps one port to the other; else the gateway reaches nothing: set the pool's endpointPickerRef.port, or --grpc-port",
			"the InferencePool names another port for its endpoint picker than the EPP listens on")
	}
	if n := m.Sum("pointsman_discovery_conflicts_total", nil); n > 0 {
		x.note("the first keeps the ID; the log names them. Who may write worker records?", "%.0f records claimed the ID of another worker", n)
	}
}

// checkIndex looks at what is known of each worker's cache.
func checkIndex(x *examination, what string, m stack.Metrics) {
	modes := map[string][]string{}
	m.Each("pointsman_kvindex_mode", func(labels map[string]string, v float64) {
		modes[indexMode(v)] = append(modes[indexMode(v)], labels["worker_id"])
	})
	if n := len(modes["exact"]); n > 0 {
		x.good("%s follows the cache events of %d workers", what, n)
	}
	for _, mode := range []string{"predicted", "none"} {
		if ids := modes[mode]; len(ids) > 0 {
			x.note("a worker's events reach it when the worker registers kv_events_endpoint, the port is reachable, the topic begins with --kv-event-topic, and it has cached something since",
				"%s knows the caches of %d workers only as %q: %s", what, len(ids), mode, strings.Join(ids, ", "))
		}
	}
	if orphans, events := m.Sum("pointsman_kvindex_unknown_parents_total", nil), m.Sum("pointsman_kvindex_events_total", nil); orphans > events/100 && orphans > 10 {
		x.note("events were missed before a subscription: a publisher with a replay endpoint (--kv-replay-port-offset) heals this at once, traffic heals it with time",
			"%s dropped %.0f of %.0f cache events whose parent it does not know", what, orphans, events)
	}
}

// checkTokens looks at what engines say of our token counts.
func checkTokens(x *examination, what string, m stack.Metrics) {
	exact := 0
	m.Each("pointsman_audit_state", func(labels map[string]string, _ float64) {
		of := fmt.Sprintf("%s requests for %s on %s", labels["form"], labels["model"], labels["worker_id"])
		switch why := labels["reason"]; {
		case labels["state"] == "exact":
			exact++
		case why == "hit":
			x.note("is prefix caching on, does the worker tell cached tokens, and is its cache large enough? Evictions look like this too",
				"%s foresees other hits than the engine finds for %s", what, of)
		case labels["state"] == "drifting", why == "drift":
			x.bad("is --router-tokenizer-path the model that this worker serves, tokenizer and chat template alike? pointsman tokens shows the first difference",
				"%s and the engine count different tokens (%s) in %s", what, why, of)
		}
	})
	if exact > 0 {
		x.good("%s counts tokens as the engines do in %d kinds of requests and workers", what, exact)
	}
	m.Each("pointsman_audit_canary", func(labels map[string]string, v float64) {
		if v == 0 {
			x.bad("is --router-tokenizer-path the model that this worker serves?",
				"%s has another tokenizer for %s than %s registered", what, labels["model"], labels["worker_id"])
		}
	})
}

// checkCircuits names the workers that are shut out.
func checkCircuits(x *examination, what string, m stack.Metrics) {
	m.Each("infera_router_worker_breaker_state", func(labels map[string]string, v float64) {
		if v >= 2 {
			x.bad("it failed several requests in a row; it is probed after its cool-down. Look at that engine",
				"%s has opened the circuit of %s", what, labels["worker_id"])
		}
	})
}

// checkForwarder asks one forwarder.
func (p *patient) checkForwarder(ctx context.Context, x *examination, addr string) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	ask := newAsker(p.token)
	if _, err := ask.get(ctx, addr, "/ready"); err != nil {
		x.bad("is it running where the EPP sends requests, <worker host>:<--destination-port>?", "forwarder %s is not ready: %v", addr, err)
		return
	}
	var answer struct {
		Workers []workerInfo `json:"workers"`
	}
	if err := ask.getJSON(ctx, addr, "/v1/workers", &answer); err != nil {
		x.bad("something else answers on that port", "forwarder %s: %v", addr, err)
		return
	}
	host, _, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimSuffix(addr, "/"), "http://"))
	if err == nil && !besideWorker(answer.Workers, host) {
		x.note("that is fine for a stand-alone router; beside a worker it means that the gateway names an address the forwarder does not serve",
			"forwarder %s is on the host of no worker", addr)
	}
	x.good("forwarder %s is ready and knows %d workers", addr, len(answer.Workers))
}

func besideWorker(workers []workerInfo, host string) bool {
	for i := range workers {
		if h, _, err := net.SplitHostPort(workers[i].ID); err == nil && h == host {
			return true
		}
	}
	return false
}
