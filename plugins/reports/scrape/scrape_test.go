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

func TestPagesOfEngines(t *testing.T) {
	for name, tt := range map[string]struct {
		page string
		want scrape.Engine
		bad  bool
	}{
		"vLLM":                  {"# HELP x y\nvllm:num_requests_running{engine=\"0\",model_name=\"m } 7\"} 3.0\nvllm:num_requests_waiting{engine=\"0\"} 2.0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nprocess_cpu_seconds_total 9\n", scrape.Engine{Running: 3, Waiting: 2, KVUse: 0.5}, false},
		"SGLang, two ranks":     {"sglang:num_running_reqs{dp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\"} 4 1700000000\nsglang:num_queue_reqs 1\nsglang:token_usage{} 0.25\n", scrape.Engine{Running: 7, Waiting: 1, KVUse: 0.25}, false},
		"not an engine":         {"up 1\n", scrape.Engine{}, true},
		"numbers that are none": {"vllm:num_requests_running NaN\nvllm:num_requests_running -1\n", scrape.Engine{}, true},
	} {
		got, err := scrape.Parse(strings.NewReader(tt.page))
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
		if x := <-got; x != (told{"w", scrape.Engine{Running: 5, Waiting: 2}}) {
			t.Errorf("%+v", x)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
