package ops_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/internal/ops"
	"pointsman/kvindex"
)

// stored makes the target of that key hold n blocks of four tokens.
func stored(x *kvindex.Index, key string, n int) {
	feed := x.Feed(key)
	feed.Connected(time.Unix(1, 0))
	e := kvindex.Event{Kind: kvindex.Stored, BlockSize: 4}
	for i := range n {
		e.Hashes = append(e.Hashes, uint64(i)+1)
		e.Tokens = append(e.Tokens, 1, 2, 3, uint32(i))
	}
	feed.Apply(&kvindex.Batch{Rank: -1, Events: []kvindex.Event{e}}, time.Unix(1, 0))
}

func TestCacheView(t *testing.T) {
	x := kvindex.New(kvindex.DefaultConfig())
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{
		{ID: "10.0.0.1:30000", DPRank: -1},
		{ID: "[fd00::1]:30000", DPRank: -1},
		{ID: "10.0.0.2:30000", DPRank: -1, DPSize: 3},
		{ID: "10.0.0.3:30000", DPRank: 2, DPSize: 4},
		{ID: "10.0.0.4:30000", DPRank: -1},
	})
	stored(x, "10.0.0.1:30000", 3)
	stored(x, "[fd00::1]:30000", 4)
	stored(x, "10.0.0.2:30000#dp0", 1)
	stored(x, "10.0.0.2:30000#dp2", 5)
	stored(x, "10.0.0.3:30000", 6)
	stored(x, "10.0.0.9:30000", 7) // not in the fleet
	for name, tt := range map[string]struct {
		path   string
		off    bool
		status int
		body   string // the beginning of it
	}{
		"a worker":                   {"10.0.0.1:30000", false, 200, `{"worker_id":"10.0.0.1:30000","dp_rank":null,"block_count":3}`},
		"the only rank":              {"10.0.0.1:30000?dp_rank=0", false, 200, `{"worker_id":"10.0.0.1:30000","dp_rank":0,"block_count":3}`},
		"no blocks":                  {"10.0.0.4:30000", false, 200, `{"worker_id":"10.0.0.4:30000","dp_rank":null,"block_count":0}`},
		"IPv6":                       {"[fd00::1]:30000", false, 200, `{"worker_id":"[fd00::1]:30000","dp_rank":null,"block_count":4}`},
		"IPv6, escaped":              {"%5Bfd00%3A%3A1%5D%3A30000", false, 200, `{"worker_id":"[fd00::1]:30000","dp_rank":null,"block_count":4}`},
		"all ranks":                  {"10.0.0.2:30000", false, 200, `{"worker_id":"10.0.0.2:30000","dp_rank":null,"block_count":6}`},
		"one of the ranks":           {"10.0.0.2:30000?dp_rank=2", false, 200, `{"worker_id":"10.0.0.2:30000","dp_rank":2,"block_count":5}`},
		"a rank without blocks":      {"10.0.0.2:30000?dp_rank=1", false, 200, `{"worker_id":"10.0.0.2:30000","dp_rank":1,"block_count":0}`},
		"a rank too high":            {"10.0.0.2:30000?dp_rank=3", false, 404, `{"detail":"worker`},
		"the rank it registered as":  {"10.0.0.3:30000?dp_rank=2", false, 200, `{"worker_id":"10.0.0.3:30000","dp_rank":2,"block_count":6}`},
		"another than it registered": {"10.0.0.3:30000?dp_rank=0", false, 404, `{"detail":"worker`},
		"no number":                  {"10.0.0.1:30000?dp_rank=x", false, 422, `{"detail":"dp_rank`},
		"negative":                   {"10.0.0.1:30000?dp_rank=-1", false, 422, `{"detail":"dp_rank`},
		"unknown":                    {"10.0.0.9:30000", false, 404, `{"detail":"no worker`},
		"none named":                 {"", false, 404, `{"detail":"no worker`},
		"no events heeded":           {"10.0.0.1:30000", true, 503, `{"detail":"KV-aware mode disabled"}`},
		"unknown, no events heeded":  {"10.0.0.9:30000", true, 503, `{"detail":"KV-aware mode disabled"}`},
	} {
		t.Run(name, func(t *testing.T) {
			h := ops.Handler(ops.Deps{
				Live: config.NewLive(config.Default(config.EPP), slog.New(slog.DiscardHandler)), Registry: prometheus.NewRegistry(), Store: store,
				Ready:       func() error { return nil },
				CacheBlocks: func(key string) (int, bool) { return x.Held(key), !tt.off },
			})
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, ops.CacheViewPath+tt.path, nil)
			r.RemoteAddr = "192.0.2.7:1" // not this machine: the page has no guard
			h.ServeHTTP(w, r)
			if w.Code != tt.status || !strings.HasPrefix(w.Body.String(), tt.body) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, tt.status, tt.body)
			}
		})
	}
}
