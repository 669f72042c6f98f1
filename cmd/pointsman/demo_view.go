package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"pointsman/internal/stack"
)

// view shows a run: a table that is redrawn on a terminal, a line now and then
// elsewhere.
type view struct {
	terminal bool

	mu    sync.Mutex
	out   io.Writer
	drawn int // lines of the table on the screen
}

func newView(out io.Writer) *view { return &view{out: out, terminal: isTerminal(out)} }

// How often a terminal is redrawn, and a line is written elsewhere.
const (
	redrawEvery = 500 * time.Millisecond
	lineEvery   = 5 * time.Second
)

// say writes a line above the table.
func (v *view) say(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drawn = 0
	_, _ = fmt.Fprintf(v.out, format+"\n", args...)
}

// watch shows t until ctx is done.
func (v *view) watch(ctx context.Context, name string, t *tracker, s *stack.Stack) {
	every := lineEvery
	if v.terminal {
		every = redrawEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			v.show(name, t.standing(), breakerStates(ctx, s))
		}
	}
}

// show draws one standing.
func (v *view) show(name string, s standing, breakers map[string]string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	hits := "   ?"
	if s.hit >= 0 {
		hits = fmt.Sprintf("%4.1f", 100*s.hit)
	}
	head := fmt.Sprintf("%-13s sent %3d/%d  ok %3d  interrupted %d  failed %d  hits %s %% of %4.1f %% possible  first token p50 %3d ms",
		name, s.sent, s.total, s.ok, s.interrupted, s.failed, hits, 100*s.ceiling, s.ttftP50.Milliseconds())
	if !v.terminal {
		_, _ = fmt.Fprintf(v.out, "%s  open %s%s\n", head, loads(s), notClosed(breakers))
		return
	}
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", v.drawn)
	}
	lines := make([]string, 0, 2+len(s.workers))
	lines = append(lines, head, fmt.Sprintf("  %-20s %9s %7s %9s  %s", "worker", "streaming", "served", "hits", "breaker"))
	for _, w := range s.workers {
		lines = append(lines, workerRow(w, breakers[w.id]))
	}
	for _, line := range lines {
		b.WriteString("\x1b[2K" + line + "\n")
	}
	v.drawn = len(lines)
	_, _ = io.WriteString(v.out, b.String())
}

func workerRow(w workerLine, breaker string) string {
	hits := "-"
	if w.prompt > 0 {
		hits = fmt.Sprintf("%.1f %%", 100*float64(w.cached)/float64(w.prompt))
	}
	if w.lost {
		breaker += "  killed"
	}
	return fmt.Sprintf("  %-20s %3d %-5s %7d %9s  %s", w.id, w.flowing, strings.Repeat("#", min(5, w.flowing)), w.served, hits, breaker)
}

// loads writes the open streams per worker in one word, x for a killed one.
func loads(s standing) string {
	parts := make([]string, 0, len(s.workers))
	for _, w := range s.workers {
		if w.lost {
			parts = append(parts, "x")
			continue
		}
		parts = append(parts, strconv.Itoa(w.flowing))
	}
	return strings.Join(parts, "/")
}

// notClosed names the circuits that are not closed.
func notClosed(breakers map[string]string) string {
	var b strings.Builder
	for id, state := range breakers {
		if state != "closed" {
			fmt.Fprintf(&b, "  breaker of %s %s", id, state)
		}
	}
	return b.String()
}

// breakerStates asks the EPP and the forwarders for their circuits' states. A
// worker gets the worst that any of them says.
func breakerStates(ctx context.Context, s *stack.Stack) map[string]string {
	admins := []string{s.EPPs[0].Admin}
	for _, w := range s.Workers {
		admins = append(admins, w.ForwarderAdmin)
	}
	worst := make(map[string]float64)
	for _, admin := range admins {
		m, err := s.Metrics(ctx, admin)
		if err != nil {
			continue // shown as unknown
		}
		m.Each("infera_router_worker_breaker_state", func(labels map[string]string, value float64) {
			id := labels["worker_id"]
			worst[id] = max(worst[id], value)
		})
	}
	states := make(map[string]string, len(worst))
	for id, value := range worst {
		states[id] = [...]string{"closed", "half-open", "open"}[min(2, max(0, int(value)))]
	}
	return states
}

// summary writes what a run showed.
func (v *view) summary(name string, o *outcome) {
	s := o.summary
	v.say("%s: %d requests, %d ok, %d interrupted, %d failed; hits %.1f %% of tokens (%.1f %% possible); first token p50 %d ms, p90 %d ms, p99 %d ms",
		name, s.Requests, s.OK, s.Interrupted, s.Failed, 100*s.HitRatio, 100*o.ceiling, s.TTFTp50.Milliseconds(), s.TTFTp90.Milliseconds(), s.TTFTp99.Milliseconds())
}
