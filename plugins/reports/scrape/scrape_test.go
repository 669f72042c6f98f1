package scrape_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/plugins/reports/scrape"
)

// vllmPage has what is read among what is not: comments, other series, a label with
// a brace in it, a line that is longer than the buffer.
var vllmPage = strings.Join([]string{
	"# HELP vllm:num_requests_running how many requests the scheduler has in a batch",
	"# TYPE vllm:num_requests_running gauge",
	`vllm:num_requests_running{engine="0",model_name="m } 7"} 3.0`,
	`vllm:num_requests_waiting{engine="0",model_name="m } 7"} 2.0`,
	`vllm:kv_cache_usage_perc{engine="0",model_name="m } 7"} 0.5`,
	`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001"} 4.0`,
	`vllm:cache_config_info{block_size="16",long="` + strings.Repeat("x", 20_000) + `"} 1.0`,
	`vllm:prompt_tokens_total{engine="0"} 123456`,
	"process_cpu_seconds_total 9",
	"",
}, "\n")

func TestPagesOfEngines(t *testing.T) {
	for name, tt := range map[string]struct {
		page string
		want scrape.Engine
		bad  bool
	}{
		"vLLM":                  {vllmPage, scrape.Engine{Running: 3, Waiting: 2, KVUse: 0.5}, false},
		"vLLM before 0.10":      {"vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.75\n", scrape.Engine{Running: 1, KVUse: 0.75}, false},
		"vLLM, the fuller rank": {"vllm:num_requests_running{engine=\"0\"} 1\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.125\nvllm:num_requests_running{engine=\"1\"} 1\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.875\n", scrape.Engine{Running: 2, KVUse: 0.875}, false},
		"without a word on KV":  {"vllm:num_requests_running 1\n", scrape.Engine{Running: 1, KVUse: -1}, false},
		"more than all memory":  {"vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 50\n", scrape.Engine{Running: 1, KVUse: 1}, false},
		"a name that is longer": {"vllm:num_requests_running 1\nvllm:num_requests_running_total 9\nvllm:kv_cache_usage_perc_bucket{le=\"1\"} 1\n", scrape.Engine{Running: 1, KVUse: -1}, false},
		"SGLang, two ranks":     {"sglang:num_running_reqs{dp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\"} 4 1700000000\nsglang:num_queue_reqs 1\nsglang:token_usage{} 0.25\n", scrape.Engine{Running: 7, Waiting: 1, KVUse: 0.25}, false},
		"not an engine":         {"up 1\n", scrape.Engine{}, true},
		"numbers that are none": {"vllm:num_requests_running NaN\nvllm:num_requests_running -1\n", scrape.Engine{}, true},
	} {
		got, err := scrape.Parse(strings.NewReader(tt.page), nil)
		if (err != nil) != tt.bad || got != tt.want && !tt.bad {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestOnlyTheWantedAreAsked(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("vllm:num_requests_running 5\nvllm:num_requests_waiting 2\n"))
	}))
	t.Cleanup(srv.Close)
	host, port, _ := net.SplitHostPort(strings.TrimPrefix(srv.URL, "http://"))
	n, _ := strconv.Atoi(port)
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: "w", Host: host, Port: n, DPRank: -1}, {ID: "spoken for", Host: host, Port: n, DPRank: -1}})
	type told struct {
		worker string
		e      scrape.Engine
	}
	got := make(chan told, 64)
	s := scrape.New(store, func(id string) bool { return id == "w" }, func(id string, e scrape.Engine, _ time.Time) { got <- told{id, e} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 3 {
		if x := <-got; x != (told{"w", scrape.Engine{Running: 5, Waiting: 2, KVUse: -1}}) {
			t.Errorf("%+v", x)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
