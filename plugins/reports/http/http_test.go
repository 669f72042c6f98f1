package http_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	httpreports "pointsman/plugins/reports/http"
	"pointsman/reports"
	"pointsman/wire"
)

type sink struct {
	mu     sync.Mutex
	others map[string]int
}

func (s *sink) Others(worker string, _ int, load reports.Other) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others[worker] = load.Requests
}
func (*sink) Sent(*reports.Sent, time.Time)        {}
func (*sink) Settled(reports.Ref, bool, time.Time) {}
func (*sink) First(uint64, time.Time)              {}
func (*sink) Done(*reports.Done, time.Time)        {}

func (s *sink) has(worker string, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	got, told := s.others[worker]
	return told && got == n
}

// start runs f until stop or the end of the test.
func start(t *testing.T, f func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// forwarder is one that reports, without requests of its own.
type forwarder struct {
	*reports.Tally

	hub  *httpreports.Hub
	addr string
}

func newForwarder(t *testing.T, source string) *forwarder {
	t.Helper()
	cfg := reports.DefaultConfig()
	cfg.Interval, cfg.Heartbeat = 5*time.Millisecond, 300*time.Millisecond
	f := &forwarder{Tally: reports.NewTally(cfg, source)}
	f.hub = httpreports.NewHub(func(worker string) { f.Know(time.Now(), worker) }, f.Idle)
	f.SetPickers(f.hub.Pickers)
	mux := http.NewServeMux()
	mux.Handle(httpreports.Path, f.hub)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	f.addr = strings.TrimPrefix(srv.URL, "http://")
	start(t, func(ctx context.Context) error { return f.Run(ctx, f.hub.Publish) })
	return f
}

func TestAPickerFollowsEveryForwarder(t *testing.T) {
	one, two := newForwarder(t, "f1"), newForwarder(t, "f2")
	foreign := httptest.NewServer(http.NotFoundHandler()) // an engine without a forwarder of ours
	t.Cleanup(foreign.Close)
	store := new(fleet.Store)
	feed := fleet.NewFeed(store)
	worker := func(id, end string) *fleet.Worker { return &fleet.Worker{ID: id, Host: "h", Endpoint: end, DPRank: -1} }
	feed.Replace([]*fleet.Worker{worker("w1", one.addr), worker("w2", two.addr), worker("w3", strings.TrimPrefix(foreign.URL, "http://"))})

	s := &sink{others: map[string]int{}}
	b := reports.NewBoard("A", s)
	sub := httpreports.NewSubscriber(store, b, 8000, nil, slog.New(slog.DiscardHandler))
	stop := start(t, sub.Run)
	testkit.Until(t, "idle workers are spoken for", func() bool { return s.has("w1", 0) && s.has("w2", 0) })
	testkit.Until(t, "all have been asked", func() bool { return sub.Pending() == 0 })
	if b.Heard("w3", time.Now()) {
		t.Error("a foreign worker is heard")
	}
	f := one.Open(reports.Pick{Ref: reports.Ref{Picker: "B", Pick: 1}})
	f.At(time.Now(), "w1", -1, true)
	testkit.Until(t, "B's request is seen", func() bool { return s.has("w1", 1) })
	testkit.Until(t, "the forwarder knows who listens", func() bool { return len(one.hub.Pickers()) == 1 })
	feed.Delete("w2")
	testkit.Until(t, "a departed worker's forwarder is left", func() bool { return len(two.hub.Pickers()) == 0 })

	one.hub.Drain()
	if len(one.hub.Pickers()) != 1 {
		t.Error("a forwarder that drains hides the end of its last request")
	}
	f.Close(time.Now(), &reports.Done{})
	testkit.Until(t, "the last end is told", func() bool { return s.has("w1", 0) })
	testkit.Until(t, "then the stream ends", func() bool { return len(one.hub.Pickers()) == 0 })
	stop()
}

// An endpoint of the fleet is somebody's engine, perhaps: it must not send a picker to
// where it would not have gone.
func TestAPickerIsNotSentElsewhere(t *testing.T) {
	f := newForwarder(t, "f1")
	away := httptest.NewServer(http.RedirectHandler("http://"+f.addr+httpreports.Path+"?picker=A", http.StatusTemporaryRedirect))
	t.Cleanup(away.Close)
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: "w1", Host: "h", Endpoint: strings.TrimPrefix(away.URL, "http://"), DPRank: -1}})
	b := reports.NewBoard("A", &sink{others: map[string]int{}})
	sub := httpreports.NewSubscriber(store, b, 8000, nil, slog.New(slog.DiscardHandler))
	start(t, sub.Run)
	testkit.Until(t, "it has been asked", func() bool { return sub.Pending() == 0 })
	if n := b.Sources(); n != 0 {
		t.Errorf("%d forwarders are heard, by way of another address", n)
	}
}

// One stream is one forwarder's: it cannot speak for others.
func TestAForwarderSpeaksForItselfAlone(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, source := range []string{"f1", "f2"} {
			line, _ := wire.AppendReport(nil, &reports.Report{Source: source, Seq: 1, Beat: time.Second, Full: true}, wire.MaxReport)
			_, _ = w.Write(append(line, '\n'))
		}
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(srv.Close)
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: "w1", Host: "h", Endpoint: strings.TrimPrefix(srv.URL, "http://"), DPRank: -1}})
	b := reports.NewBoard("A", &sink{others: map[string]int{}})
	reg := prometheus.NewPedanticRegistry()
	if err := b.Register(reg); err != nil {
		t.Fatal(err)
	}
	start(t, httpreports.NewSubscriber(store, b, 8000, nil, slog.New(slog.DiscardHandler)).Run)
	testkit.Until(t, "the second is refused", func() bool {
		err := testutil.GatherAndCompare(reg, strings.NewReader(""), "pointsman_load_reports_received_total")
		return err != nil && strings.Contains(err.Error(), `result="malformed"} 1`)
	})
	if n := b.Sources(); n != 1 {
		t.Errorf("%d forwarders are heard by one stream", n)
	}
}

// Forwarders whose port speaks TLS are heard over it, when their certificate is the
// one that was asked for; one of another CA or name is not listened to.
func TestForwardersAreHeardOverTLS(t *testing.T) {
	a, stranger := testfleet.NewAuthority(t), testfleet.NewAuthority(t)
	f := newForwarder(t, "f1")
	cert, key, ca := a.Issue("forwarder", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(httpreports.Path, f.hub)
	srv := httptest.NewUnstartedServer(mux)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: "w1", Host: "h", Endpoint: strings.TrimPrefix(srv.URL, "https://"), DPRank: -1}})
	_, _, other := stranger.Issue("forwarder", time.Now().Add(time.Hour))
	for _, tc := range []struct {
		name, ca, server string
		heard            bool
	}{
		{"the CA, and the name of the certificate", ca, "forwarder", true},
		{"the CA, and the endpoint's address", ca, "", true},
		{"another name", ca, "somebody", false},
		{"another CA", other, "forwarder", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw, err := os.ReadFile(tc.ca)
			if err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(raw)
			s := &sink{others: map[string]int{}}
			sub := httpreports.NewSubscriber(store, reports.NewBoard("A", s), 8000, nil, slog.New(slog.DiscardHandler))
			sub.Secure(func() *tls.Config {
				return &tls.Config{RootCAs: roots, ServerName: tc.server, MinVersion: tls.VersionTLS13}
			})
			stop := start(t, sub.Run)
			testkit.Until(t, "the forwarder has been asked", func() bool { return sub.Pending() == 0 })
			if tc.heard {
				testkit.Until(t, "its worker is spoken for", func() bool { return s.has("w1", 0) })
			} else if s.has("w1", 0) {
				t.Error("it is heard")
			}
			stop()
		})
	}
}

func TestTheEndpointIsForPickersAlone(t *testing.T) {
	f := newForwarder(t, "f1")
	for name, edit := range map[string]func(*http.Request){
		"through a gateway":        func(r *http.Request) { r.Header.Set("X-Forwarded-For", "1.2.3.4") },
		"with an EPP's headers":    func(r *http.Request) { r.Header.Set("X-Worker-Instance-Id", "w1") },
		"through Envoy":            func(r *http.Request) { r.Header.Set("X-Envoy-Expected-Rq-Timeout-Ms", "1") },
		"without an ID":            func(r *http.Request) { r.URL.RawQuery = "" },
		"with an ID that is none":  func(r *http.Request) { r.URL.RawQuery = "picker=a+b" },
		"by another method":        func(r *http.Request) { r.Method = http.MethodPost },
		"with a query without end": func(r *http.Request) { r.URL.RawQuery += "&worker=" + strings.Repeat("x", 2000) },
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+f.addr+httpreports.Path+"?picker=A", nil)
		if err != nil {
			t.Fatal(err)
		}
		edit(r)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
}

// A subscriber that does not read is cut off and costs the others nothing.
func TestASlowSubscriberIsCutOff(t *testing.T) {
	f := newForwarder(t, "f1")
	slow, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Close() }()
	if _, err = slow.Write([]byte("GET " + httpreports.Path + "?picker=slow HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "it listens", func() bool { return len(f.hub.Pickers()) == 1 })
	big := &reports.Report{Source: "f1", Beat: time.Second, Pickers: []string{strings.Repeat("x", 1<<20)}}
	testkit.Until(t, "it is gone", func() bool {
		big.Seq++
		f.hub.Publish(big)
		return len(f.hub.Pickers()) == 0
	})
	resp, err := http.Get("http://" + f.addr + httpreports.Path + "?picker=A")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	line, err := bufio.NewReader(resp.Body).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if r, err := wire.DecodeReport(line); err != nil || r.Source != "f1" {
		t.Errorf("%+v, %v", r, err)
	}
}
