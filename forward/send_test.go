package forward_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
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

// lines is a transport whose workers answer as a function of the worker and of how
// often it was dialed before.
type lines struct {
	answer func(id string, dial int) (*scripted, error)

	mu     sync.Mutex
	dials  []string
	heads  []http.Header
	aborts []string // workers that were told to give up
}

var errNoLine = errors.New("no line")

func (l *lines) Do(ctx context.Context, w *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	l.mu.Lock()
	if strings.HasPrefix(req.Target, "/abort") {
		l.aborts = append(l.aborts, w.ID)
		l.mu.Unlock()
		return &forward.Response{Status: 200, Length: -1, Header: http.Header{}, Body: http.NoBody}, nil
	}
	n := 0
	for _, id := range l.dials {
		if id == w.ID {
			n++
		}
	}
	l.dials, l.heads = append(l.dials, w.ID), append(l.heads, req.Header.Clone())
	l.mu.Unlock()
	req.Progress.Reach(forward.StageDial)
	s, err := l.answer(w.ID, n)
	if err != nil {
		return nil, &forward.Error{Stage: forward.StageDial, Err: err}
	}
	req.Progress.Reach(forward.StageWrite)
	req.Progress.Reach(forward.StageDispatched)
	if w.Role == fleet.Prefill {
		if err := s.wait(ctx, s.headAfter); err != nil {
			return nil, &forward.Error{Stage: forward.StageDispatched, Err: err}
		}
		return &forward.Response{Status: 200, Length: -1, Header: http.Header{}, Body: http.NoBody}, nil
	}
	return s.Do(ctx, w, req)
}

func (l *lines) count(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, d := range l.dials {
		if d == id {
			n++
		}
	}
	return n
}

// lineWorld is a forwarder over lines: workers by role and number.
type lineWorld struct {
	*world
	lines *lines
	took  time.Duration
	rec   *httptest.ResponseRecorder
}

// newLineWorld serves one request on the workers, for which it may run in a bubble.
func newLineWorld(t *testing.T, ids []string, l *lines, cfg forward.Config, header map[string]string) *lineWorld {
	t.Helper()
	store := new(fleet.Store)
	var all []*fleet.Worker
	for _, id := range ids {
		w := &fleet.Worker{ID: id, Model: model, DPRank: -1, BlockSize: 16, Engine: fleet.SGLang}
		switch id[0] {
		case 'p':
			w.Role, w.Protocol, w.Params = fleet.Prefill, "sglang-bootstrap", json.RawMessage(`{"bootstrap_addr":"10.0.0.1:8998"}`)
		case 'd':
			w.Role, w.Protocol, w.Params = fleet.Decode, "sglang-bootstrap", json.RawMessage(`{"bootstrap_addr":"10.0.0.1:8998"}`)
		}
		all = append(all, w)
	}
	fleet.NewFeed(store).Replace(all)
	pc := picker.DefaultConfig()
	pc.Seed = 1
	p, err := picker.New(pc, store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	fatal(t, err)
	srv, err := forward.New(cfg, forward.Deps{
		Picker: p, Store: store, Log: slog.New(slog.DiscardHandler), Connectors: plugins.Connectors,
		Transports: map[string]forward.Transport{"http": l},
	})
	fatal(t, err)
	w := &lineWorld{world: &world{t: t, reg: prometheus.NewRegistry(), server: srv, picker: p}, lines: l, rec: httptest.NewRecorder()}
	fatal(t, srv.Register(w.reg))
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(streamBody))
	for k, v := range header {
		req.Header.Set(k, v)
	}
	start := time.Now()
	srv.Handler().ServeHTTP(w.rec, req)
	w.took = time.Since(start)
	time.Sleep(2 * time.Second) // for what outlives a request by a second
	synctest.Wait()
	if held := len(p.Held(time.Now().Add(time.Hour), 0)); held != 0 {
		t.Errorf("%d reservations held", held)
	}
	return w
}

func fine() *scripted { return &scripted{parts: []string{role, tok0, done}} }

func TestConnectRetrySameEPDialsAWorkerAgainThatWasPickedForWhatItHolds(t *testing.T) {
	tests := []struct {
		name       string
		ids        []string
		refusals   int // of the first worker or the decode worker, before it accepts
		retries    int
		max        int
		status     int
		dials      int // of that worker
		redials    int
		ok         int
		failovers  int
		wantDetour time.Duration // at most this, for the pauses
	}{
		{"a decode worker that refuses once", []string{"p1", "d1", "d2"}, 1, 1, 3, 200, 2, 1, 1, 0, 50 * time.Millisecond},
		{"a decode worker that refuses, without redials", []string{"p1", "d1"}, 1, 0, 3, 502, 1, 0, 0, 0, 0},
		{"three redials", []string{"p1", "d1"}, 3, 3, 8, 200, 4, 3, 1, 0, 150 * time.Millisecond},
		{"the cap of attempts bounds redials", []string{"p1", "d1"}, 9, 3, 3, 502, 3, 2, 0, 0, 100 * time.Millisecond},
		{"a mixed worker without affinity", []string{"m1"}, 1, 3, 3, 502, 1, 0, 0, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := forward.DefaultConfig()
				cfg.ConnectRetrySameEP, cfg.MaxAttempts = tt.retries, tt.max
				target := ""
				l := &lines{answer: func(id string, dial int) (*scripted, error) {
					if id[0] == 'p' {
						return fine(), nil
					}
					if target == "" {
						target = id
					}
					if id == target && dial < tt.refusals {
						return nil, errNoLine
					}
					return fine(), nil
				}}
				w := newLineWorld(t, tt.ids, l, cfg, nil)
				synctest.Wait()
				if w.rec.Code != tt.status || l.count(target) != tt.dials {
					t.Errorf("status %d after %d dials: %s", w.rec.Code, l.count(target), w.rec.Body)
				}
				if n := w.count("infera_router_connect_retry_same_ep_total"); n != tt.redials {
					t.Errorf("%d redials counted, want %d", n, tt.redials)
				}
				if n := w.count("infera_router_connect_retry_same_ep_ok_total"); n != tt.ok {
					t.Errorf("%d good redials counted, want %d", n, tt.ok)
				}
				if n := w.count("infera_router_failover_total"); n != tt.failovers {
					t.Errorf("%d failovers, want %d", n, tt.failovers)
				}
				if least := time.Duration(tt.redials) * 10 * time.Millisecond; w.took < least || w.took > tt.wantDetour {
					t.Errorf("took %s, want %s to %s", w.took, least, tt.wantDetour)
				}
			})
		})
	}
}

// TestMaxAttemptsBoundsEveryDialAndDispatch of a leg: redials and alternates
// together (failover 2B: same_ep 3 + retries 5 is at most 3).
func TestMaxAttemptsBoundsEveryDialAndDispatch(t *testing.T) {
	for _, ids := range [][]string{{"m1", "m2", "m3", "m4", "m5", "m6"}, {"p1", "d1", "d2", "d3", "d4", "d5"}} {
		synctest.Test(t, func(t *testing.T) {
			cfg := forward.DefaultConfig()
			cfg.ConnectRetrySameEP, cfg.MaxRetries = 3, 5
			l := &lines{answer: func(id string, _ int) (*scripted, error) {
				if id[0] == 'p' {
					return fine(), nil
				}
				return nil, errNoLine
			}}
			w := newLineWorld(t, ids, l, cfg, nil)
			n := 0
			for _, id := range l.dials {
				if id[0] != 'p' {
					n++
				}
			}
			if n != 3 || w.rec.Code != 502 {
				t.Errorf("%v: %d dials, status %d", ids, n, w.rec.Code)
			}
			want := "upstream_connect_failed"
			if ids[0] == "p1" {
				want = "decode_connect_failed"
			}
			if !strings.Contains(w.rec.Body.String(), want) {
				t.Errorf("%s, want %s", w.rec.Body, want)
			}
		})
	}
}

func TestAnExhaustedRetryBudgetReturnsTheFirstError(t *testing.T) {
	for name, tt := range map[string]struct {
		ids     []string
		retries int
	}{
		"another worker":     {[]string{"m1", "m2"}, 1},
		"the same one again": {[]string{"p1", "d1"}, 0},
		"another pair":       {[]string{"p1", "d1", "p2", "d2"}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := forward.DefaultConfig()
				cfg.RetryBudgetShare, cfg.RetryBudgetFloor, cfg.MaxRetries = 0, 0, tt.retries
				l := &lines{answer: func(id string, _ int) (*scripted, error) {
					if id[0] == 'p' {
						return fine(), nil
					}
					return nil, errNoLine
				}}
				w := newLineWorld(t, tt.ids, l, cfg, nil)
				n := 0
				for _, id := range l.dials {
					if id[0] != 'p' {
						n++
					}
				}
				if n != 1 || w.rec.Code != 502 || w.rec.Header().Get("X-Should-Retry") != "" {
					t.Errorf("dials %v, %d, headers %v", l.dials, w.rec.Code, w.rec.Header())
				}
				if n := w.count("infera_router_retry_budget_exhausted_total"); n != 1 {
					t.Errorf("exhausted %d times", n)
				}
			})
		})
	}
}

// TestXRequestTimeoutMsBoundsTheWholeRequestAndIsPassedOn as what is left of it.
func TestXRequestTimeoutMsBoundsTheWholeRequestAndIsPassedOn(t *testing.T) {
	tests := []struct {
		name   string
		header string
		change func(*forward.Config)
		took   time.Duration
		status int
		code   string
		left   []string // what the workers were told
	}{
		{"it ends a wait", "3000", nil, 3 * time.Second, 504, "client_timeout_exceeded", []string{"3000"}},
		{"the total is less", "3000", func(c *forward.Config) { c.MaxDuration = time.Second }, time.Second, 504, "max_duration_exceeded", []string{"1000"}},
		{"a stage is less, and the next try gets what is left", "3000", func(c *forward.Config) { c.IdleTimeout = 2 * time.Second }, 3 * time.Second, 504, "client_timeout_exceeded", []string{"3000", "1000"}},
		{"no number", "soon", nil, 0, 400, "invalid_value", nil},
		{"none", "0", nil, 0, 400, "invalid_value", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := forward.DefaultConfig()
				if tt.change != nil {
					tt.change(&cfg)
				}
				l := &lines{answer: func(string, int) (*scripted, error) { return &scripted{headAfter: time.Hour}, nil }}
				w := newLineWorld(t, []string{"m1", "m2"}, l, cfg, map[string]string{"X-Request-Timeout-Ms": tt.header})
				if w.took != tt.took || w.rec.Code != tt.status || !strings.Contains(w.rec.Body.String(), tt.code) {
					t.Errorf("%d after %s: %s", w.rec.Code, w.took, w.rec.Body)
				}
				var left []string
				for _, h := range l.heads {
					left = append(left, h.Get("X-Request-Timeout-Ms"))
				}
				if strings.Join(left, " ") != strings.Join(tt.left, " ") {
					t.Errorf("workers were told %v, want %v", left, tt.left)
				}
			})
		})
	}
}

// TestEachStageOfAPairHasItsOwnBudget: each stage stalls in turn, its timer ends
// it, and raising any other one to an hour changes nothing.
func TestEachStageOfAPairHasItsOwnBudget(t *testing.T) {
	stalls := []struct {
		name    string
		prefill scripted
		decode  scripted
		took    time.Duration
		code    string
		own     int // index of the knob
	}{
		{"prefill reply", scripted{headAfter: 2 * time.Hour}, scripted{headAfter: 2 * time.Hour}, 30 * time.Second, "pd_prefill_timeout", 0},
		{"first token, no head", scripted{}, scripted{headAfter: 2 * time.Hour}, 120 * time.Second, "first_token_timeout", 1},
		{"first token behind the role", scripted{}, scripted{parts: []string{role, tok0}, pause: 100 * time.Second}, 120 * time.Second, "first_token_timeout", 1},
		{"idle", scripted{}, scripted{parts: []string{tok0, done}, pause: 0}, 0, "", 2},
	}
	knobs := []func(*forward.Config){
		func(c *forward.Config) { c.PrefillTimeout = time.Hour },
		func(c *forward.Config) { c.FirstTokenTimeout = time.Hour },
		func(c *forward.Config) { c.IdleTimeout = time.Hour },
		func(c *forward.Config) { c.MaxDuration = time.Hour },
		func(c *forward.Config) { c.TTFTTimeout = time.Hour },
		func(c *forward.Config) { c.WriteTimeout = time.Hour },
		func(*forward.Config) {},
	}
	for _, st := range stalls {
		for k, raise := range knobs {
			if k == st.own {
				continue
			}
			t.Run(st.name+" with knob "+strconv.Itoa(k), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					cfg := forward.DefaultConfig()
					cfg.HoldTime = time.Hour // a role alone does not commit
					raise(&cfg)
					pre, dec := st.prefill, st.decode
					l := &lines{answer: func(id string, _ int) (*scripted, error) {
						if id[0] == 'p' {
							return &pre, nil
						}
						return &dec, nil
					}}
					w := newLineWorld(t, []string{"p1", "d1", "p2", "d2"}, l, cfg, nil)
					if w.took != st.took || !strings.Contains(w.rec.Body.String(), st.code) {
						t.Errorf("after %s: %d %s", w.took, w.rec.Code, w.rec.Body)
					}
					if st.code != "" && (w.rec.Code != 504 || dec.ended == nil) {
						t.Errorf("status %d; the decode leg ended with %v", w.rec.Code, dec.ended)
					}
					if st.own == 0 && pre.ended == nil {
						t.Error("the prefill leg was not aborted")
					}
				})
			})
		}
	}
}

// TestARequestsRecordTellsItsStages is GET /requests/ID.
func TestARequestsRecordTellsItsStages(t *testing.T) {
	w := newWorld(t, []script{raw(jsonReply(500, `{}`)), good}, direct)
	w.do(call{body: streamBody, header: map[string]string{"X-Worker-Instance-Id": "w1", "X-Request-Id": "r-1"}})
	w.settled(1)
	rec := httptest.NewRecorder()
	w.server.ServeRequest(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/requests/r-1", nil))
	var got struct {
		Requests []struct {
			Outcome, Finish string
			Status, Tokens  int
			In              int   `json:"bytes_in"`
			Out             int64 `json:"bytes_out"`
			Attempts        []struct {
				ID     string `json:"attempt_id"`
				Worker string `json:"worker_id"`
				Write  int64  `json:"write_ns"`
				Sent   int64  `json:"dispatched_ns"`
				Head   int64  `json:"head_ns"`
				First  int64  `json:"first_byte_ns"`
				Over   int64  `json:"over_ns"`
				Why    string
			}
		}
	}
	fatal(t, json.Unmarshal(rec.Body.Bytes(), &got))
	if len(got.Requests) != 1 || len(got.Requests[0].Attempts) != 2 {
		t.Fatalf("%s", rec.Body)
	}
	r := got.Requests[0]
	if r.Outcome != "ok" || r.Status != 200 || r.Finish != "stop" || r.In != len(streamBody) || r.Out != int64(len(goodBody)) || r.Tokens == 0 {
		t.Errorf("%+v", r)
	}
	a, b := r.Attempts[0], r.Attempts[1]
	if a.ID != "r-1/m1" || a.Worker != "w1" || a.Why != "5xx" || a.First != 0 || b.ID != "r-1/m2" || b.Worker != "w2" || b.Why != "ok" {
		t.Errorf("%+v", r.Attempts)
	}
	if a.Write <= 0 || !slices.IsSorted([]int64{a.Write, a.Sent, a.Head, a.Over, b.Write, b.Sent, b.Head, b.First, b.Over}) {
		t.Errorf("stages out of order: %+v", r.Attempts)
	}
	rec = httptest.NewRecorder()
	w.server.ServeRequest(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/requests/other", nil))
	if rec.Code != http.StatusNotFound {
		t.Errorf("an unknown ID: %d", rec.Code)
	}
}
