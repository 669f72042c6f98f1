package ops_test

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/config"
	"pointsman/fleet"
	"pointsman/internal/ops"
	"pointsman/kvindex"
	"pointsman/picker"
)

// deps are those of an EPP with one worker, of a model m.
func deps(t *testing.T, args ...string) ops.Deps {
	t.Helper()
	cfg, err := config.Parse(config.EPP, append([]string{
		"--discovery-backend", "etcd", "--etcd-endpoint", "127.0.0.1", "--kv-event-transport", "none",
	}, args...), func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: "10.0.0.1:30000", URL: "http://10.0.0.1:30000", Host: "10.0.0.1", Port: 30000, Model: "m", DPRank: -1}})
	index := kvindex.New(cfg.Index)
	p, err := picker.New(cfg.Picker, store, index, breaker.NewSet(cfg.Breaker))
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	if err := store.Register(reg); err != nil {
		t.Fatal(err)
	}
	return ops.Deps{Live: config.NewLive(cfg, slog.New(slog.DiscardHandler)), Registry: reg, Store: store, Picker: p, Ready: func() error { return nil }}
}

// ask sends a request from the given address and returns status and body.
func ask(t *testing.T, d ops.Deps, from, method, path, body string, header ...string) (int, string) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.RemoteAddr = from
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	ops.Handler(d).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const (
	here  = "127.0.0.1:5000"
	there = "10.9.8.7:5000"
)

func TestWhoMayAskWhat(t *testing.T) {
	open := deps(t)
	locked := deps(t, "--admin-token", "s3cret")
	tests := []struct {
		name       string
		deps       ops.Deps
		from, path string
		token      string
		want       int
	}{
		{"metrics are for everybody", open, there, "/metrics", "", 200},
		{"health too", open, there, "/health", "", 200},
		{"settings are for this machine", open, here, "/config/effective", "", 200},
		{"by IPv6 too", open, "[::1]:5000", "/config/effective", "", 200},
		{"and by mapped addresses", open, "[::ffff:127.0.0.1]:5000", "/debug/picks", "", 200},
		{"the profiler is not here", open, here, "/debug/pprof/", "", 404},
		{"not for others", open, there, "/config/effective", "", 403},
		{"nor are picks", open, there, "/debug/picks", "", 403},
		{"an address that is none is another machine's", open, "@", "/debug/picks", "", 403},
		{"a token lets others in", locked, there, "/config/effective", "s3cret", 200},
		{"the wrong one does not", locked, there, "/config/effective", "s3creT", 401},
		{"with a token this machine needs it too", locked, here, "/debug/picks", "", 401},
		{"an unknown page", open, here, "/debug/else", "", 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var header []string
			if tt.token != "" {
				header = []string{"Authorization", "Bearer " + tt.token}
			}
			status, body := ask(t, tt.deps, tt.from, http.MethodGet, tt.path, "", header...)
			if status != tt.want {
				t.Errorf("status %d, want %d: %s", status, tt.want, body)
			}
			if strings.Contains(body, "s3cret") {
				t.Error("the token is shown")
			}
		})
	}
}

func TestReadinessSaysWhy(t *testing.T) {
	d := deps(t)
	if status, _ := ask(t, d, there, http.MethodGet, "/ready", ""); status != 200 {
		t.Errorf("status %d, want 200", status)
	}
	d.Ready = func() error { return errors.New("the fleet is not known yet") }
	if status, body := ask(t, d, there, http.MethodGet, "/ready", ""); status != 503 || !strings.Contains(body, "the fleet is not known yet") {
		t.Errorf("status %d, body %s", status, body)
	}
}

func TestSettingsSayWhereTheyCameFrom(t *testing.T) {
	_, body := ask(t, deps(t, "--kv-overlap-weight", "20"), here, http.MethodGet, "/config/effective", "")
	var page struct {
		Program  string
		Settings []config.Effective
	}
	if err := json.Unmarshal([]byte(body), &page); err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Settings {
		if s.Name == "kv-overlap-weight" {
			if s.Value != "20" || s.Source != config.FromFlag || page.Program != "epp" {
				t.Errorf("%+v of %s", s, page.Program)
			}
			return
		}
	}
	t.Error("kv-overlap-weight is not shown")
}

func TestThePoolIsReadBack(t *testing.T) {
	d := deps(t, "--kv-overlap-weight", "20", "--admin-token", "s3cret")
	asked := []string{"Authorization", "Bearer s3cret"}
	status, body := ask(t, d, here, http.MethodGet, "/config/effective?pool=default", "", asked...)
	var page map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &page); err != nil || status != 200 {
		t.Fatalf("status %d, %v: %s", status, err, body)
	}
	if len(page) != 4 || page["generation"] == nil || page["sha256"] == nil || page["live"] == nil ||
		!strings.Contains(string(page["pools"]), `"kv_overlap_weight":{"declared":20,"effective":20,"unit":"","source":"flag","clamped":false}`) {
		t.Errorf("page %s", body)
	}
	if strings.Contains(body, "s3cret") {
		t.Error("the token is shown")
	}
	if status, body := ask(t, d, here, http.MethodGet, "/config/effective?pool=other", "", asked...); status != 404 || !strings.Contains(body, "serves the pool default") {
		t.Errorf("another pool: status %d, %s", status, body)
	}
}

func TestADryRunPicksAndReservesNothing(t *testing.T) {
	d := deps(t)
	for _, body := range []string{`{"Model":"m","Tokens":100}`, `{"Model":"nobody"}`} {
		status, text := ask(t, d, here, http.MethodPost, "/debug/pick", body)
		if status != 200 || !json.Valid([]byte(text)) {
			t.Errorf("%s: status %d, %s", body, status, text)
		}
		if wantsWorker := strings.Contains(body, `"m"`); wantsWorker != strings.Contains(text, "10.0.0.1:30000") {
			t.Errorf("%s: %s", body, text)
		}
	}
	for _, body := range []string{`{"Mdel":"m"}`, `[`, `{"Tokens":"x"}`, strings.Repeat(" ", 2<<20)} {
		if status, text := ask(t, d, here, http.MethodPost, "/debug/pick", body); status != 400 || !strings.Contains(text, "try {") {
			t.Errorf("%.20q: status %d, %.200s", body, status, text)
		}
	}
	if _, text := ask(t, d, here, http.MethodGet, "/debug/picks", ""); strings.Contains(text, "10.0.0.1:30000") {
		t.Errorf("a dry run is in the ring: %s", text)
	}
}
