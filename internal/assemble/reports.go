package assemble

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"pointsman/config"
	"pointsman/forward"
	"pointsman/internal/run"
	"pointsman/picker"
	httpreports "pointsman/plugins/reports/http"
	natsreports "pointsman/plugins/reports/nats"
	"pointsman/reports"
)

// loads is what a program has of load reports: a picker listens, a forwarder tells,
// and a forwarder that picks does both.
type loads struct {
	id    string // this process, among pickers and forwarders; "" when reports are off
	board *reports.Board
	tally *reports.Tally
	link  *natsreports.Link
	hub   *httpreports.Hub
	subs  *httpreports.Subscriber

	door    atomic.Pointer[Ends] // who wants to know of the ends of requests
	started time.Time
	warm    atomic.Bool
	peers   *peers // nil for none
}

// Ends is what is told how this picker's requests go on and end.
type Ends interface {
	First(pick uint64, at time.Time)
	Done(d *reports.Done, at time.Time)
}

// newLoads makes the parts that cfg asks for.
func (c *Core) newLoads(cfg *config.Config) (collector, error) {
	mode := cfg.Reports.Mode
	if mode == reports.Off {
		return nil, nil //nolint:nilnil // reports that are off are no fault
	}
	l := &c.loads
	l.id = processID()
	picks := cfg.Program == config.EPP || cfg.Forward.Mode == forward.Auto
	if picks {
		l.board = reports.NewBoard(l.id, c)
	}
	var hello func()
	if cfg.Program == config.Forwarder {
		l.tally = reports.NewTally(cfg.Reports, l.id)
		hello = l.tally.Refresh
		if mode != reports.NATS {
			l.hub = httpreports.NewHub(func(worker string) {
				if c.Store.Snapshot().Worker(worker) != nil {
					l.tally.Know(time.Now(), worker)
					return
				}
				l.tally.Refresh()
			}, l.tally.Idle)
			l.tally.SetPickers(l.hub.Pickers)
		}
	}
	if mode == reports.NATS || mode == reports.Auto && onBroker(cfg) {
		link, err := natsreports.New(cfg.NATS.Config, l.board, hello, c.Log)
		if err != nil {
			return nil, fmt.Errorf("load reports: %w", err)
		}
		l.link = link
	}
	if l.board != nil && (mode == reports.HTTP || mode == reports.Auto && cfg.Program == config.EPP) {
		l.subs = httpreports.NewSubscriber(c.Store, l.board, cfg.Picker.DestinationPort, l.silent, c.Log)
		if secured, err := c.forwarderTLS(); err != nil {
			return nil, err
		} else if secured != nil {
			l.subs.Secure(secured)
		}
	}
	if l.board == nil {
		return nil, nil //nolint:nilnil // who only tells has no numbers of its own
	}
	return l.board, nil
}

// onBroker reports whether anything of the fleet goes over a broker.
func onBroker(cfg *config.Config) bool {
	return cfg.KVEventTransport == "nats" || cfg.Program == config.Forwarder && cfg.RequestTransport == "nats"
}

// brokerTime is how long a broker has to bring reports before forwarders are asked
// one by one.
const brokerTime = 3 * time.Second

// silent reports whether a worker's forwarder is not heard over the broker.
func (l *loads) silent(worker string) bool {
	now := time.Now()
	return l.link == nil || now.Sub(l.started) > brokerTime && !l.board.HeardBy(reports.ViaBroker, worker, now)
}

// processID names this process: its host, and what another run of it would not have.
func processID() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '-'
	}, host)
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	return host[:min(len(host), 64)] + "." + hex.EncodeToString(random[:])
}

// Others tells the picker what a worker has in flight of others. It implements a
// part of [reports.Sink], as do First and Done.
func (c *Core) Others(worker string, rank int, o reports.Other) {
	c.Picker.SetExternal(worker, rank, External(&o), o.At)
}

// External is what reports say of a worker, as a picker takes it.
func External(o *reports.Other) picker.External {
	return picker.External{
		Requests: float64(o.Requests), Waiting: float64(o.Waiting), PrefillTokens: float64(o.PrefillTokens),
		Decoders: float64(o.Requests - o.Waiting), ContextTokens: float64(o.ContextTokens),
		ActiveTokens: float64(o.ActiveTokens), Rate: o.Rate, Every: o.Beat,
	}
}

// Sent tells the picker what another replica has sent where.
func (c *Core) Sent(s *reports.Sent, at time.Time) {
	c.Picker.Foretell(s.Worker, s.Rank, picker.Foreign(s.Ref), picker.Trail(s.Trail), at)
}

// Settled tells the picker that such a request has begun to be answered, or never will.
func (c *Core) Settled(ref reports.Ref, began bool, at time.Time) {
	c.Picker.Settled(picker.Foreign(ref), began, at)
}

// First passes on that a request has had its first token.
func (c *Core) First(pick uint64, at time.Time) {
	if d := c.loads.door.Load(); d != nil {
		(*d).First(pick, at)
	}
}

// Done passes on that a request has ended.
func (c *Core) Done(d *reports.Done, at time.Time) {
	if door := c.loads.door.Load(); door != nil {
		(*door).Done(d, at)
	}
}

// Tell makes ends be told how requests end. It is to be called once, before Start.
func (c *Core) Tell(ends Ends) { c.loads.door.Store(&ends) }

// PickerID names this process in reports; "" when there are none.
func (c *Core) PickerID() string { return c.loads.id }

// Tally counts what a forwarder has in flight; nil when nobody is told.
func (c *Core) Tally() *reports.Tally { return c.loads.tally }

// Mine is what [reports.Board.Mine] says; nil when there are no reports.
func (c *Core) Mine() func(worker string, rank int, now time.Time) (int, time.Time, bool) {
	if c.loads.board == nil {
		return nil
	}
	return c.loads.board.Mine
}

// ReportRoute is where a forwarder streams its reports; false when it does not. It
// stops with the last request after ctx is done.
func (c *Core) ReportRoute(ctx context.Context) (path string, h http.Handler, ok bool) {
	if c.loads.hub == nil {
		return "", nil, false
	}
	context.AfterFunc(ctx, c.loads.hub.Drain)
	return httpreports.Path, c.loads.hub, true
}

// startLoads runs the parts.
func (c *Core) startLoads(parts *run.Group) {
	l := &c.loads
	l.started = time.Now()
	if l.board != nil {
		parts.Go("load reports", func(ctx context.Context) error {
			return l.board.Run(ctx, func(now time.Time) { c.Gate.SetReplicas(l.board.Replicas(now)) })
		})
	}
	if l.link != nil {
		parts.Go("load reports over nats", l.link.Run)
	}
	if l.subs != nil {
		parts.Go("load reports over http", l.subs.Run)
	}
	if l.tally != nil {
		parts.Go("load report", func(ctx context.Context) error {
			return l.tally.Run(ctx, func(r *reports.Report) {
				if l.link != nil {
					l.link.Publish(r)
				}
				if l.hub != nil {
					l.hub.Publish(r)
				}
			})
		})
	}
}

// Warm says what this replica has yet to learn before it should take requests, nil
// when there is nothing, or when it has waited long enough for it.
func (c *Core) Warm(now time.Time) error {
	l := &c.loads
	if l.warm.Load() || c.Config.Reports.WarmTimeout == 0 || l.started.IsZero() {
		return nil
	}
	why := c.cold(now)
	took := now.Sub(l.started)
	if why != nil && took < c.Config.Reports.WarmTimeout {
		return why
	}
	if l.warm.CompareAndSwap(false, true) {
		attrs := []slog.Attr{slog.Duration("after", took)}
		if why != nil {
			c.Log.LogAttrs(context.Background(), slog.LevelWarn, "ready without all that was to be learned first", append(attrs, slog.Any("error", why))...)
		} else {
			c.Log.LogAttrs(context.Background(), slog.LevelInfo, "warm", attrs...)
		}
	}
	return nil
}

// cold says what is missing.
func (c *Core) cold(now time.Time) error {
	l := &c.loads
	if l.link != nil && !l.link.Warm(now) {
		if l.subs == nil || now.Sub(l.started) < brokerTime {
			return errors.New("warming up: the broker has not brought the forwarders' load reports")
		}
	}
	if l.subs != nil {
		if n := l.subs.Pending(); n > 0 {
			return fmt.Errorf("warming up: %d forwarders have not told their load", n)
		}
	}
	if l.peers != nil && !l.peers.asked.Load() {
		return errors.New("warming up: no other replica has said yet what prompts are where")
	}
	if source, ok := c.events.(interface{ Behind() string }); ok {
		if what := source.Behind(); what != "" {
			return fmt.Errorf("warming up: KV events: %s", what)
		}
	}
	return nil
}
