package admission

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Mode says what a [Gate] does with a request that is too much.
type Mode uint8

// The modes (contract fc_mode).
const (
	Off     Mode = iota // count what is open, decide nothing
	Observe             // admit everything, and count what Enforce would have done
	Enforce             // queue and refuse
)

// String returns the word of the setting fc_mode.
func (m Mode) String() string {
	switch m {
	case Observe:
		return "observe"
	case Enforce:
		return "enforce"
	case Off:
	}
	return "off"
}

// ParseMode returns the mode of a word.
func ParseMode(word string) (Mode, error) {
	for _, m := range []Mode{Off, Observe, Enforce} {
		if m.String() == word {
			return m, nil
		}
	}
	return Off, fmt.Errorf("%q: want off, observe or enforce", word)
}

// Bounds of the settings, and what is no setting.
const (
	MaxCeiling = 100000    // of MaxOutstanding, and of the caps per worker
	MaxDepth   = 65536     // of QueueDepth
	MaxWait    = time.Hour // of QueueWait, Warmup and their like

	// MaxWorkerDepth is what WorkerQueueDepth is clamped to (seed 001 section 3;
	// LoxiLB clamps LLB_PD_QUEUE_DEPTH_PER_EP).
	MaxWorkerDepth = 64

	tenantSlots = 64 // tenants told apart at once; more share one slot
)

// Config is a gate's tuning; start from [DefaultConfig].
type Config struct {
	Mode Mode // fc_mode; default Off

	// MaxOutstanding is how many units of requests may run at once, of all
	// workers together; 0, the default, is no limit (fc_max_outstanding).
	MaxOutstanding int
	// Replicas is among how many programs like this one MaxOutstanding is
	// divided, rounding up; 0, the default, is as many as [Gate.SetReplicas] says.
	Replicas int
	live     int // replicas that live; 0 for one

	// QueueDepth is how many requests may wait; 0, the default, refuses at once
	// (fc_max_queue_depth).
	QueueDepth int
	// QueueWait is how long a request may wait, from the moment it first has to
	// until it is refused with 504; default 5 s (fc_max_queue_wait_ms,
	// LLB_PD_MAX_PARK_SEC).
	QueueWait time.Duration
	// QueueBytes bounds the memory of the waiting requests' bodies; 0 is no limit.
	// Default 1 GiB (queue_max_bytes).
	QueueBytes int64

	// WorkerQueueDepth is how many requests may wait for each worker that is at
	// its own cap, beside QueueDepth; 0, the default, none; clamped to
	// [MaxWorkerDepth] (queue_depth_per_ep, LLB_PD_QUEUE_DEPTH_PER_EP).
	WorkerQueueDepth int

	// TenantSharePct is the part of the ceiling and of the queue, in percent, that
	// one tenant may take; 0, the default, is no limit (fc_tenant_max_share_pct).
	TenantSharePct int

	// Adaptive lowers the ceiling while the engines report waiting requests or
	// first tokens come later than TTFTTarget, and raises it again (fc_adaptive).
	Adaptive bool
	// TTFTTarget is the time to first token above which a second counts as
	// overloaded; 0, the default, goes by waiting requests alone (fc_ttft_target_ms).
	TTFTTarget time.Duration
	// TelemetryStale is the age beyond which a report counts no more; without a
	// fresh one the ceiling stays. Default 30 s (fc_telemetry_stale_ms).
	TelemetryStale time.Duration

	// LeakAge is the age at which a request that was not released is reported as
	// leaked; 0 reports none. Set it to the longest duration of a request and a
	// minute. Default 24 h.
	LeakAge time.Duration
}

// DefaultConfig returns the defaults: a gate that only counts.
func DefaultConfig() Config {
	return Config{QueueWait: 5 * time.Second, QueueBytes: 1 << 30, TelemetryStale: 30 * time.Second, LeakAge: 24 * time.Hour}
}

// Validate reports every fault of c: values out of range and settings that
// contradict each other.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Mode <= Enforce, "mode %d: want off, observe or enforce", c.Mode)
	check(c.MaxOutstanding >= 0 && c.MaxOutstanding <= MaxCeiling, "max outstanding %d: want 0 (no limit) to %d", c.MaxOutstanding, MaxCeiling)
	check(c.Replicas >= 0 && c.Replicas <= 1000, "replicas %d: want 0 (those that live) to 1000", c.Replicas)
	check(c.QueueDepth >= 0 && c.QueueDepth <= MaxDepth, "queue depth %d: want 0 (refuse at once) to %d", c.QueueDepth, MaxDepth)
	check(c.QueueWait >= 0 && c.QueueWait <= MaxWait, "queue wait %v: want 0 to %v", c.QueueWait, MaxWait)
	check(c.QueueDepth == 0 || c.QueueWait > 0, "queue depth %d with a queue wait of 0: give a wait of at least 1 ms, or a depth of 0", c.QueueDepth)
	check(c.QueueBytes >= 0, "queue bytes %d: want 0 (no limit) or more", c.QueueBytes)
	check(c.WorkerQueueDepth >= 0 && c.WorkerQueueDepth <= MaxWorkerDepth, "queue depth per worker %d: want 0 (off) to %d", c.WorkerQueueDepth, MaxWorkerDepth)
	check(c.WorkerQueueDepth == 0 || c.QueueWait > 0, "queue depth per worker %d with a queue wait of 0: give a wait of at least 1 ms, or a depth of 0", c.WorkerQueueDepth)
	check(c.TenantSharePct >= 0 && c.TenantSharePct <= 100, "tenant share %d%%: want 0 (no limit) to 100", c.TenantSharePct)
	check(!c.Adaptive || c.MaxOutstanding > 0, "adaptive limits need a ceiling to adapt: set max outstanding")
	check(c.TTFTTarget >= 0 && c.TTFTTarget <= MaxWait, "TTFT target %v: want 0 (none) to %v", c.TTFTTarget, MaxWait)
	check(c.TTFTTarget == 0 || c.Adaptive, "a TTFT target has no effect without adaptive limits: turn them on, or leave the target out")
	check(c.TelemetryStale > 0 && c.TelemetryStale <= MaxWait, "telemetry stale %v: want 1 ms to %v", c.TelemetryStale, MaxWait)
	check(c.LeakAge >= 0, "leak age %v: want 0 (off) or more", c.LeakAge)
	return errors.Join(errs...)
}

// ceiling is this program's part of MaxOutstanding; 0 is no limit.
func (c *Config) ceiling() int { return ceilDiv(c.MaxOutstanding, cmp.Or(c.Replicas, c.live, 1)) }

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// share is pct percent of n, at least 1; 0 of no limit.
func share(n, pct int) int {
	if n == 0 {
		return 0
	}
	return max(1, ceilDiv(n*pct, 100))
}
