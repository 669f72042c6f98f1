package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Live is the configuration of a running program. It follows the --config file:
// what rooms can change while they run changes for new requests, the rest waits
// for a restart and is shown so. A file with a fault is refused whole.
//
// Create it with [NewLive]; give it the rooms with [Live.OnReload] before
// [Live.Run]. All methods may be called at any time after that.
type Live struct {
	log     *slog.Logger
	metrics *metrics
	cur     atomic.Pointer[version]

	mu      sync.Mutex // one reload at a time
	rooms   []room
	reports map[string]func() any // of the read-back's live part
}

// version is a configuration that has been in force.
type version struct {
	cfg        *Config
	generation uint64
	sum        string
}

type room struct {
	name string
	set  func(*Config) error
}

// NewLive makes cfg, as [Parse] returns it, the first generation.
func NewLive(cfg *Config, log *slog.Logger) *Live {
	l := &Live{log: log, metrics: newMetrics(), reports: map[string]func() any{}}
	l.put(&version{cfg: cfg, generation: 1, sum: cfg.sum()})
	return l
}

// Current returns the configuration in force, which is not to be changed.
func (l *Live) Current() *Config { return l.cur.Load().cfg }

// OnReload has set called with each new configuration. set must change nothing
// when it returns an error.
func (l *Live) OnReload(name string, set func(*Config) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rooms = append(l.rooms, room{name, set})
}

// Report puts what f returns under name in the live part of the read-back: what
// the rooms do with the settings at the moment.
func (l *Live) Report(name string, f func() any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reports[name] = f
}

func (l *Live) put(v *version) {
	l.cur.Store(v)
	l.metrics.inForce(v)
}

// ErrRefused is wrapped by the errors of a reload that changed nothing.
var ErrRefused = errors.New("configuration refused")

// Reload reads everything anew and puts it in force. An error wraps ErrRefused
// and says why; the former configuration then stays as it is.
func (l *Live) Reload(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.cur.Load()
	next, err := l.next(before)
	if err != nil {
		l.metrics.reloads[refused].Inc()
		l.log.LogAttrs(ctx, slog.LevelError, "configuration refused, the former stays in force",
			slog.Uint64("generation", before.generation), slog.Any("error", err))
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	changed := differences(before.cfg, next.cfg)
	if len(changed) == 0 {
		l.metrics.reloads[unchanged].Inc()
		return nil
	}
	l.put(next)
	l.metrics.reloads[applied].Inc()
	l.log.LogAttrs(ctx, slog.LevelInfo, "configuration reloaded",
		slog.Uint64("generation", next.generation), slog.String("sha256", next.sum),
		slog.String("changed", strings.Join(changed, ", ")),
		slog.String("restart_needed", strings.Join(slices.Sorted(maps.Keys(next.cfg.pending)), ", ")))
	for _, text := range next.cfg.Warnings() {
		if !slices.Contains(before.cfg.Warnings(), text) {
			l.log.LogAttrs(ctx, slog.LevelWarn, "setting without effect", slog.String("detail", text))
		}
	}
	return nil
}

// next reads everything anew, keeps what waits for a restart as it is, and gives
// the result to all rooms, or to none.
func (l *Live) next(before *version) (*version, error) {
	if before.cfg.again == nil {
		return nil, errors.New("this configuration was not read from anywhere")
	}
	if _, err := read(before.cfg.File); err != nil {
		return nil, fmt.Errorf("config file %s: %w", before.cfg.File, err)
	}
	cfg, err := before.cfg.again()
	if err != nil {
		return nil, err
	}
	if err := cfg.keep(before.cfg); err != nil {
		return nil, err
	}
	for i, r := range l.rooms {
		if err := r.set(cfg); err != nil {
			for _, done := range l.rooms[:i] {
				err = errors.Join(err, done.set(before.cfg))
			}
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
	}
	return &version{cfg: cfg, generation: before.generation + 1, sum: cfg.sum()}, nil
}

// keep gives the settings that wait for a restart the values that they have in
// running.
func (c *Config) keep(running *Config) error {
	c.pending = map[string]string{}
	now, were := c.everyRow(), running.everyRow()
	for i, s := range now {
		if old := were[i].value.get(); !s.live && s.value.get() != old {
			c.pending[s.name] = s.value.get()
			if err := s.value.set(old); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	if len(c.pending) == 0 {
		return nil
	}
	c.finish()
	if err := errors.Join(c.Validate(), errors.Join(c.contradictions()...)); err != nil {
		return fmt.Errorf("until a restart applies %s: %w", strings.Join(slices.Sorted(maps.Keys(c.pending)), ", "), err)
	}
	return nil
}

// differences lists the settings whose read-back differs.
func differences(a, b *Config) []string {
	var out []string
	is, was := b.everyRow(), a.everyRow()
	for i, s := range is {
		o, before := b.origin[s.name], a.origin[s.name]
		pending, waits := b.pending[s.name]
		pendingBefore, waited := a.pending[s.name]
		if s.value.get() != was[i].value.get() || o != before || pending != pendingBefore || waits != waited {
			out = append(out, s.name)
		}
	}
	return out
}

// Readback is what GET /config/effective?pool=P answers (failover 2, conventions).
type Readback struct {
	Generation uint64                      `json:"generation"` // of this process: 1 at its start, one more with each reload that changed something
	SHA256     string                      `json:"sha256"`     // of the values in force
	Pools      map[string]map[string]Value `json:"pools"`
	Live       map[string]any              `json:"live"` // what the rooms do at the moment
}

// Read returns the read-back of the pool; false when the program serves another.
// "" stands for the program's own.
func (l *Live) Read(pool string) (Readback, bool) {
	v := l.cur.Load()
	if pool != "" && pool != v.cfg.Pool {
		return Readback{}, false
	}
	l.mu.Lock()
	reports := maps.Clone(l.reports)
	l.mu.Unlock()
	out := Readback{
		Generation: v.generation, SHA256: v.sum, Live: map[string]any{},
		Pools: map[string]map[string]Value{v.cfg.Pool: v.cfg.values()},
	}
	for name, f := range reports {
		out.Live[name] = f()
	}
	return out, true
}
