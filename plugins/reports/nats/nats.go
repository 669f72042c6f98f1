// Package nats carries load reports over a NATS broker: each forwarder publishes on
// a subject of its own, and each picker listens to all. Nothing is stored: a report
// that is lost is made up for by the next heartbeat.
//
// Pickers say once a second on a common subject that they live. A forwarder that
// hears a picker for the first time publishes all it knows at once, so that a new
// replica need not wait for a heartbeat; and pickers count each other by it.
//
// # Concurrency
//
// [Link.Run] owns the connection, which mends itself for ever. Publish may be called
// from any goroutine, before Run and after; it does not wait for the broker.
package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/internal/broker"
	"pointsman/internal/retry"
	"pointsman/reports"
	"pointsman/wire"
)

// Timing of the link.
const (
	connectWait   = 5 * time.Second
	helloEvery    = time.Second
	reconnectWait = time.Second
	strangeAfter  = 10 * time.Second // for which a silent picker is known
	maxStrangers  = 1000
	// answerTime is how long forwarders have to answer a hello with all they know.
	answerTime = time.Second
)

// Link is a connection to the broker. Make it with [New].
type Link struct {
	cfg broker.Config
	log *slog.Logger

	board *reports.Board // of a picker; nil of a program that only publishes
	hello func()         // called when a picker is heard for the first time; nil for nothing

	conn atomic.Pointer[nats.Conn]
	up   atomic.Int64 // unix nanoseconds of when it was last connected; 0 while it is not

	mu     sync.Mutex
	heard  map[string]time.Time
	buffer []byte
}

// New returns a link that has no connection yet. A picker gives its board; a
// forwarder gives what is to be done when a picker is heard for the first time.
func New(cfg broker.Config, board *reports.Board, hello func(), log *slog.Logger) (*Link, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("load reports over nats: %w", err)
	}
	return &Link{cfg: cfg, board: board, hello: hello, log: log, heard: map[string]time.Time{}}, nil
}

// Run keeps the connection until ctx is done, and returns nil then.
func (l *Link) Run(ctx context.Context) error {
	for {
		nc, err := l.cfg.Dial(ctx, "pointsman-load", connectWait, broker.LogFaults(ctx, l.log))
		if err == nil {
			err = l.serve(ctx, nc)
			l.conn.Store(nil)
			l.up.Store(0)
			nc.Close()
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it has ended as it was to
		}
		l.log.LogAttrs(ctx, slog.LevelDebug, "load reports have no broker", slog.Any("error", err))
		if !retry.Sleep(ctx, reconnectWait) {
			return nil
		}
	}
}

// serve subscribes, and says hello until ctx is done or the connection is lost.
func (l *Link) serve(ctx context.Context, nc *nats.Conn) error {
	if l.board != nil {
		if _, err := nc.Subscribe(wire.ReportPrefix+"*", l.take); err != nil {
			return fmt.Errorf("subscribe to load reports: %w", err)
		}
	}
	if _, err := nc.Subscribe(wire.HelloSubject, l.meet); err != nil {
		return fmt.Errorf("subscribe to pickers: %w", err)
	}
	if err := nc.FlushTimeout(5 * time.Second); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	l.conn.Store(nc)
	l.up.Store(time.Now().UnixNano())
	if l.hello != nil {
		l.hello() // who listens has missed what was said without a connection
	}
	tick := time.NewTicker(helloEvery)
	defer tick.Stop()
	for {
		if l.board != nil {
			b, _ := json.Marshal(helloJSON{Version: 1, Picker: l.board.Me()}) // two plain fields
			if err := nc.Publish(wire.HelloSubject, b); err != nil {
				return fmt.Errorf("say hello: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if nc.IsClosed() {
			return nats.ErrConnectionClosed
		}
	}
}

type helloJSON struct {
	Version int    `json:"v"`
	Picker  string `json:"picker"`
}

// meet takes a picker's sign of life.
func (l *Link) meet(m *nats.Msg) {
	var h helloJSON
	if len(m.Data) > 4*reports.MaxID || json.Unmarshal(m.Data, &h) != nil || !reports.ValidID(h.Picker) {
		return
	}
	now := time.Now()
	if l.board != nil {
		l.board.Saw(h.Picker, now)
	}
	if l.hello != nil && l.stranger(h.Picker, now) {
		l.hello()
	}
}

// stranger reports whether a picker was not heard of late.
func (l *Link) stranger(id string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other, at := range l.heard {
		if now.Sub(at) > strangeAfter {
			delete(l.heard, other)
		}
	}
	_, known := l.heard[id]
	if known || len(l.heard) < maxStrangers {
		l.heard[id] = now
	}
	return !known
}

// take puts a report on the board.
func (l *Link) take(m *nats.Msg) {
	r, err := wire.DecodeReport(m.Data)
	if err != nil || m.Subject != wire.ReportPrefix+wire.Token(r.Source) { // each speaks for itself, as far as the broker lets it
		l.board.Malformed()
		return
	}
	l.board.Take(time.Now(), reports.ViaBroker, r)
}

// Publish sends a report, if there is a connection.
func (l *Link) Publish(r *reports.Report) {
	nc := l.conn.Load()
	if nc == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	most := min(int(nc.MaxPayload()), wire.MaxReport) // a broker's default is 1 MiB, and it ends the connection of who sends more
	if l.buffer, err = wire.AppendReport(l.buffer[:0], r, most); err != nil {
		l.log.LogAttrs(context.Background(), slog.LevelWarn, "a load report is lost; raise the broker's max_payload, or let reports go by http", slog.Any("error", err))
		return
	}
	// A client library's buffer that is full while the broker is away refuses it.
	_ = nc.Publish(wire.ReportPrefix+wire.Token(r.Source), l.buffer)
}

// Warm reports whether the forwarders on the broker have had the time to say what
// they know.
func (l *Link) Warm(now time.Time) bool {
	up := l.up.Load()
	return up != 0 && now.Sub(time.Unix(0, up)) >= answerTime
}
