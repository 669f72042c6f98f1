package health_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/fleet"
	"pointsman/health"
)

// firstResult runs a prober of one real worker until a probe has ended, and returns
// how: the label of the counter that moved.
func firstResult(t *testing.T, w *fleet.Worker, ping func(context.Context, string) error, edit func(*health.Config)) string {
	t.Helper()
	cfg := health.DefaultConfig()
	cfg.Enabled, cfg.Interval, cfg.Timeout = true, 500*time.Millisecond, 500*time.Millisecond
	edit(&cfg)
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{w})
	p, err := health.New(cfg, health.Deps{Store: store, Log: slog.New(slog.DiscardHandler), Ping: ping})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	if err := p.Register(reg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		page, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range page {
			if f.GetName() != "infera_router_probe_total" {
				continue
			}
			for _, m := range f.GetMetric() {
				if m.GetCounter().GetValue() > 0 {
					return m.GetLabel()[0].GetValue()
				}
			}
		}
		if t.Context().Err() != nil {
			break
		}
	}
	return "none"
}

// at is the worker that listens at lis.
func at(lis net.Addr) *fleet.Worker {
	host, port, _ := net.SplitHostPort(lis.String())
	n, _ := strconv.Atoi(port)
	return &fleet.Worker{ID: "w", Host: host, Port: n, PingSubject: "ping.w", DPRank: -1}
}

// raw serves each connection by hand until the test ends.
func raw(t *testing.T, serve func(net.Conn)) net.Addr {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return lis.Addr()
}

func TestHealthProbeTypePathAndPortOnRealListeners(t *testing.T) {
	t.Parallel()
	sick := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/ready" && r.URL.RawQuery == "full=1" && r.Method == http.MethodGet && r.Host == r.Context().Value(http.LocalAddrContextKey).(net.Addr).String():
			w.WriteHeader(http.StatusNoContent)
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/ready?full=1", http.StatusFound)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(sick.Close)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(secure.Close)
	hung := raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	closed := raw(t, func(c net.Conn) { _ = c.Close() })
	chat := raw(t, func(c net.Conn) { _, _ = io.WriteString(c, "220 mail.example ready\r\n") })
	slow := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 2")
		_, _ = io.Copy(io.Discard, c)
	})
	large := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		for _, err := c.Write(make([]byte, 1<<10)); err == nil; {
			_, err = c.Write(make([]byte, 1<<10))
		}
	})
	gone := raw(t, func(net.Conn) {})
	freed, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := freed.Addr()
	_ = freed.Close()
	kind := func(k health.Type, path string) func(*health.Config) {
		return func(c *health.Config) {
			c.Type = k
			if path != "" {
				c.Path = path
			}
		}
	}
	pings := func(err error) func(context.Context, string) error {
		return func(_ context.Context, subject string) error {
			if subject != "ping.w" {
				t.Errorf("asked at %q", subject)
			}
			return err
		}
	}
	silent := at(gone)
	silent.PingSubject = ""
	tests := []struct {
		name   string
		worker *fleet.Worker
		edit   func(*health.Config)
		ping   func(context.Context, string) error
		want   string
	}{
		{"a listener whose health route says 503 is up by tcp", at(sick.Listener.Addr()), kind(health.TCP, ""), nil, "ok"},
		{"and down by http", at(sick.Listener.Addr()), kind(health.HTTP, ""), nil, "status"},
		{"another path, with its query and the worker's host", at(sick.Listener.Addr()), kind(health.HTTP, "/ready?full=1"), nil, "ok"},
		{"a redirect is not followed", at(sick.Listener.Addr()), kind(health.HTTP, "/moved"), nil, "status"},
		{"nothing listens, tcp", at(free), kind(health.TCP, ""), nil, "refused"},
		{"nothing listens, http", at(free), kind(health.HTTP, ""), nil, "refused"},
		{"the probe's own port", at(free), func(c *health.Config) { c.Type, c.Port = health.TCP, at(sick.Listener.Addr()).Port }, nil, "ok"},
		{"a hung accept is up by tcp", at(hung), kind(health.TCP, ""), nil, "ok"},
		{"and a timeout by http", at(hung), kind(health.HTTP, ""), nil, "timeout"},
		{"half a status line", at(slow), kind(health.HTTP, ""), nil, "timeout"},
		{"a connection that is closed", at(closed), kind(health.HTTP, ""), nil, "error"},
		{"another protocol", at(chat), kind(health.HTTP, ""), nil, "error"},
		{"an answer without end", at(large), kind(health.HTTP, ""), nil, "ok"},
		{"https", at(secure.Listener.Addr()), kind(health.HTTPS, ""), nil, "ok"},
		{"https where http is spoken", at(sick.Listener.Addr()), kind(health.HTTPS, ""), nil, "error"},
		{"a ping that is answered", at(gone), kind(health.NATS, ""), pings(nil), "ok"},
		{"a ping without responders", at(gone), kind(health.NATS, ""), pings(errors.New("no responders")), "refused"},
		{"a ping that times out", at(gone), kind(health.NATS, ""), pings(context.DeadlineExceeded), "timeout"},
		{"a ping that could not be sent", at(gone), kind(health.NATS, ""), pings(health.ErrNoNews), "skipped"},
		{"a worker without a ping subject", silent, kind(health.NATS, ""), pings(errors.New("asked")), "skipped"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := firstResult(t, tt.worker, tt.ping, tt.edit); got != tt.want {
				t.Errorf("result %s, want %s", got, tt.want)
			}
		})
	}
}

func TestConfigSaysWhatIsWrong(t *testing.T) {
	for want, edit := range map[string]func(*health.Config){
		"timeout 5s is above the interval 2s": func(c *health.Config) { c.Interval, c.Timeout = 2*time.Second, 5*time.Second },
		`probe type "icmp"`:                   func(c *health.Config) { c.Type = "icmp" },
		`probe path "health"`:                 func(c *health.Config) { c.Path = "health" },
		"no spaces":                           func(c *health.Config) { c.Path = "/a HTTP/1.1\r\nX: y" },
		"probe interval 1ms":                  func(c *health.Config) { c.Interval = time.Millisecond },
		"probe rise 0":                        func(c *health.Config) { c.Rise = 0 },
	} {
		cfg := health.DefaultConfig()
		edit(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want it to say %q", err, want)
		}
	}
}
