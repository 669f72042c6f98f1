package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"pointsman/internal/stack"
)

const fleetText = `fleet prints the workers that a forwarder has found, and, when --metrics is given
as well, what that program thinks of each.`

// workerInfo is one element of /v1/workers.
type workerInfo struct {
	ID        string `json:"worker_id"`
	URL       string `json:"url"`
	Model     string `json:"model_name"`
	Engine    string `json:"engine"`
	Status    string `json:"status"`
	Role      string `json:"disagg_mode"`
	KVEvents  string `json:"kv_events_endpoint"`
	BlockSize int    `json:"kv_block_size"`
	DPSize    int    `json:"dp_size"`
	Transport string `json:"request_transport"`
}

func fleetCommand(ctx context.Context, args []string, out, _ io.Writer) error {
	var url, admin string
	fs := newFlags("fleet", fleetText, out)
	fs.StringVar(&url, "url", "http://127.0.0.1:8000", "address of a forwarder")
	fs.StringVar(&admin, "metrics", "", "metrics address of an EPP or forwarder, for index, circuit and load")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	ask := newAsker("")
	var answer struct {
		Workers []workerInfo `json:"workers"`
	}
	if err := ask.getJSON(ctx, url, "/v1/workers", &answer); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	var metrics stack.Metrics
	if admin != "" {
		raw, err := ask.get(ctx, admin, "/metrics")
		if err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
		if metrics, err = stack.ParseMetrics(raw); err != nil {
			return fmt.Errorf("fleet: %w", err)
		}
	}
	return printFleet(out, answer.Workers, metrics)
}

func printFleet(out io.Writer, workers []workerInfo, metrics stack.Metrics) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "WORKER\tMODEL\tENGINE\tROLE\tSTATUS\tTRANSPORT\tBLOCK\tEVENTS")
	if metrics != nil {
		fmt.Fprint(w, "\tINDEX\tBLOCKS\tCIRCUIT\tIN FLIGHT\tTOKENS")
	}
	fmt.Fprintln(w)
	for i := range workers {
		info := &workers[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", info.ID, info.Model, info.Engine, info.Role, info.Status, info.Transport,
			orUnknown(info.BlockSize), orDash(info.KVEvents))
		if metrics != nil {
			id := map[string]string{"worker_id": info.ID}
			fmt.Fprintf(w, "\t%s\t%.0f\t%s\t%.0f\t%s",
				indexMode(metrics.Sum("pointsman_kvindex_mode", id)), metrics.Sum("infera_policy_cache_view_size", id),
				circuitState(metrics.Sum("infera_router_worker_breaker_state", id)), metrics.Sum("pointsman_router_in_flight", id),
				tokensState(metrics, info.ID))
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("fleet: %w", err)
	}
	_, err := fmt.Fprintf(out, "%d workers\n", len(workers))
	return err
}

// tokensState says what the audit of prompts makes of a worker: the worst of what
// it says of its forms of requests that is not off.
func tokensState(m stack.Metrics, id string) string {
	state := "-"
	m.Each("pointsman_audit_state", func(labels map[string]string, _ float64) {
		if is := labels["state"]; labels["worker_id"] == id && (is == "drifting" || is == "exact" && state == "-") {
			state = is
		}
	})
	return state
}

func orUnknown(n int) string {
	if n == 0 {
		return "?"
	}
	return strconv.Itoa(n)
}

// indexMode names a value of pointsman_kvindex_mode.
func indexMode(v float64) string { return named(v, "none", "predicted", "exact") }

// circuitState names a value of infera_router_worker_breaker_state.
func circuitState(v float64) string { return named(v, "closed", "half-open", "open") }

func named(v float64, names ...string) string {
	return names[min(len(names)-1, max(0, int(v)))]
}
