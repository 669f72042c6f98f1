package audit

import "time"

// window is the last comparisons, true where they differed.
type window struct {
	ring []bool
	next int
	seen int // at most len(ring)
	bad  int // of these
}

func (w *window) add(differs bool, size int) {
	if w.ring == nil {
		w.ring = make([]bool, size)
	}
	if w.seen == len(w.ring) && w.ring[w.next] {
		w.bad--
	}
	w.ring[w.next] = differs
	if differs {
		w.bad++
	}
	w.next = (w.next + 1) % len(w.ring)
	w.seen = min(w.seen+1, len(w.ring))
}

// forgive forgets what differed.
func (w *window) forgive() {
	clear(w.ring)
	w.bad = 0
}

// trust is whether a source of token ids is asked for one form of one model's
// requests.
type trust struct {
	window  window
	drifts  bool
	since   time.Time     // reports that began before are about an earlier state
	retryAt time.Time     // of the next trial, while it drifts
	backoff time.Duration // what the last wait was; 0 when there was none lately
	left    int           // prompts that the running trial may still have
	agreed  int           // in trials, since the last that differed
}

// allows reports whether the source is to be asked, and takes one of a trial's
// prompts if that is why.
func (t *trust) allows(cfg *Config, now time.Time) bool {
	if !t.drifts {
		return true
	}
	if !now.Before(t.retryAt) {
		t.left, t.retryAt = cfg.Trial, now.Add(t.backoff)
	}
	if t.left == 0 {
		return false
	}
	t.left--
	return true
}

// change is what a comparison made of a trust.
type change uint8

const (
	unchanged change = iota
	demoted          // it drifts from here on
	failed           // a trial found that it still does
	healed           // it is asked again
)

// compared takes a comparison of a prompt that began at began. lone says whether
// those that differ are a few workers' alone: that is held against these, not
// against the source.
func (t *trust) compared(cfg *Config, began, now time.Time, differs bool, lone func() bool) change {
	switch {
	case began.Before(t.since):
		return unchanged
	case !t.drifts:
		t.window.add(differs, cfg.Window)
		switch bad := t.window.bad; {
		case bad == 0 && t.window.seen == cfg.Window:
			t.backoff = 0
		case bad < cfg.bound(cfg.Share):
		case lone():
			t.window.forgive()
		default:
			t.drifts = true
			t.wait(cfg, now)
			return demoted
		}
		return unchanged
	case differs && lone():
		return unchanged
	case differs:
		t.wait(cfg, now)
		return failed
	}
	if t.agreed++; t.agreed < cfg.Heal {
		return unchanged
	}
	t.drifts, t.since = false, now
	t.window = window{}
	return healed
}

// wait leaves the source alone, the longer the oftener it has failed.
func (t *trust) wait(cfg *Config, now time.Time) {
	t.backoff = min(max(cfg.Retry, 2*t.backoff), cfg.MaxRetry)
	t.since, t.retryAt = now, now.Add(t.backoff)
	t.left, t.agreed = 0, 0
	t.window = window{}
}
