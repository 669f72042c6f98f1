package nats_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"pointsman/internal/broker"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/plugins/reports/nats"
	"pointsman/reports"
)

// sink counts what a board tells.
type sink struct {
	mu     sync.Mutex
	others map[string]int
	done   int
}

func (s *sink) Others(worker string, _ int, load reports.Other) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others[worker] = load.Requests
}
func (*sink) Sent(*reports.Sent, time.Time)        {}
func (*sink) Settled(reports.Ref, bool, time.Time) {}
func (*sink) First(uint64, time.Time)              {}
func (s *sink) Done(*reports.Done, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
}

// start runs f until the test is over.
func start(t *testing.T, f func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func link(t *testing.T, url string, b *reports.Board, hello func()) *nats.Link {
	t.Helper()
	l, err := nats.New(broker.Config{Server: url}, b, hello, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	start(t, l.Run)
	return l
}

// Two pickers see each other's requests at one forwarder, a third that comes later
// is told at once, and an outage of the broker heals.
func TestPickersSeeOneFleetOverABroker(t *testing.T) {
	server := testfleet.StartNATS(t, nil)
	cfg := reports.DefaultConfig()
	cfg.Interval, cfg.Heartbeat = 5*time.Millisecond, 500*time.Millisecond
	tally := reports.NewTally(cfg, "f1")
	fwd := link(t, server.URL, nil, tally.Refresh)
	start(t, func(ctx context.Context) error { return tally.Run(ctx, fwd.Publish) })

	picker := func(id string) (*sink, *reports.Board) {
		s := &sink{others: map[string]int{}}
		b := reports.NewBoard(id, s)
		link(t, server.URL, b, nil)
		return s, b
	}
	has := func(s *sink, n int) func() bool {
		return func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			got, told := s.others["w"]
			return told && got == n
		}
	}
	a, boardA := picker("A")
	b, _ := picker("B")
	one := tally.Open(reports.Pick{Ref: reports.Ref{Picker: "A", Pick: 1}})
	one.At(time.Now(), "w", -1, true)
	testkit.Until(t, "B sees A's request", has(b, 1))
	testkit.Until(t, "A does not see its own as another's", has(a, 0))
	c, _ := picker("C")
	testkit.Until(t, "a new replica is told", has(c, 1))
	testkit.Until(t, "all know of three", func() bool { return boardA.Replicas(time.Now()) == 3 })

	server.Stop(t)
	one.Close(time.Now(), &reports.Done{Status: 200})
	server.Start(t)
	testkit.Until(t, "the end comes over when the broker is back", has(b, 0))
	testkit.Until(t, "and is told to whose it is", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.done > 0
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != 0 {
		t.Error("another picker's end was told to B")
	}
}

// What a forwarder of many requests has to tell is more than a broker takes.
func TestAReportGetsThroughABrokerOfSmallMessages(t *testing.T) {
	small := testfleet.StartNATS(t, func(o *server.Options) { o.MaxPayload = 8 << 10 })
	cfg := reports.DefaultConfig()
	cfg.Interval, cfg.Heartbeat = 5*time.Millisecond, 200*time.Millisecond
	tally := reports.NewTally(cfg, "f1")
	fwd := link(t, small.URL, nil, tally.Refresh)
	s := &sink{others: map[string]int{}}
	link(t, small.URL, reports.NewBoard("A", s), nil)
	for i := range 1000 {
		f := tally.Open(reports.Pick{Ref: reports.Ref{Picker: "A", Pick: uint64(i + 1)}})
		f.At(time.Now(), "w", -1, true)
		f.Close(time.Now(), &reports.Done{Status: 200, RequestID: "r"})
	}
	tally.Open(reports.Pick{}).At(time.Now(), "w", -1, true)
	start(t, func(ctx context.Context) error { return tally.Run(ctx, fwd.Publish) })
	testkit.Until(t, "the load and some ends", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.others["w"] == 1 && s.done > 0
	})
}

func TestALinkWantsABroker(t *testing.T) {
	if _, err := nats.New(broker.Config{Server: "http://h:1"}, nil, nil, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a URL of no broker is taken")
	}
}
