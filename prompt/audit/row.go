package audit

import "pointsman/prompt"

// State is what the audit says of one form of a model's requests on a worker.
type State string

// The states.
const (
	Exact    State = "exact"    // the engine counts as we do
	Drifting State = "drifting" // it does not, or a source was given up because it did not
	Off      State = "off"      // nothing is claimed: nothing was compared, or can be
)

// Why a state is not exact, beside the reasons of [Skip].
const (
	whyCount  = "count"  // token counts differ
	whyHit    = "hit"    // counts agree, hits do not
	whyCanary = "canary" // the worker's tokenizer makes other ids of the canary
	whyDrift  = "drift"  // every source drifts: prompts are approximated
	whyNone   = "none"   // no request yet
)

// verdict is a state and why; why is "" for Exact.
type verdict struct {
	state State
	why   string
}

type rowKey struct {
	model, worker string
	form          Form
}

// row is what was seen of one form of a model's requests on a worker.
type row struct {
	counts, hits window
	skipped      int  // in a row
	why          Skip // of the last one skipped
	tells        bool // the worker has reported cached tokens
	said         verdict

	exact, drift, driftTokens uint64
	hitAgrees, hitOver        uint64
	hitUnder                  uint64
	skips                     map[Skip]uint64
}

// add counts a report. It reports whether the token count was compared, and
// whether it differed.
func (r *row) add(cfg *Config, rep *Report) (compared, differs bool) {
	if rep.Skip != Comparable {
		if r.skips == nil {
			r.skips = map[Skip]uint64{}
		}
		r.skips[rep.Skip]++
		r.skipped, r.why = r.skipped+1, rep.Skip
		return false, false
	}
	r.skipped = 0
	differs = rep.Tokens != rep.Counted
	r.counts.add(differs, cfg.Window)
	if differs {
		r.drift++
		r.driftTokens += uint64(abs(rep.Tokens - rep.Counted)) //nolint:gosec // not negative
	} else {
		r.exact++
	}
	r.hit(cfg, rep)
	return true, differs
}

// hit compares what the pick foresaw with what the engine found. vLLM leaves
// cached tokens out when there are none, and when it is not told to report them:
// so nothing means none only of a worker that has reported some.
func (r *row) hit(cfg *Config, rep *Report) {
	cached := rep.Cached
	if cached < 0 {
		if !r.tells {
			return
		}
		cached = 0
	}
	r.tells = true
	switch off := rep.Hit - cached; {
	case off > cfg.HitSlack:
		r.hitOver++
		r.hits.add(true, cfg.Window)
	case -off > cfg.HitSlack:
		r.hitUnder++
		r.hits.add(true, cfg.Window)
	default:
		r.hitAgrees++
		r.hits.add(false, cfg.Window)
	}
}

// restart forgets what differed: another source makes the ids now.
func (r *row) restart() {
	r.counts.forgive()
	r.hits.forgive()
}

// wrong reports whether most of what was compared differed.
func (r *row) wrong() bool { return 2*r.counts.bad > r.counts.seen }

func abs(n int) int { return max(n, -n) }

// verdict says what is to be said of row k, with mu held.
func (a *Auditor) verdict(k rowKey, r *row) verdict {
	files, worker := a.drifts(k, prompt.SourceFiles), a.drifts(k, prompt.SourceWorker)
	canary, known := a.canaries[canaryKey{k.model, k.worker}]
	switch {
	case worker && (files || !a.hasFiles(k.model)):
		return verdict{Off, whyDrift}
	case r.counts.bad >= a.cfg.bound(a.cfg.Share), files:
		return verdict{Drifting, whyCount}
	case r.counts.seen == 0 && r.skipped == 0:
		return verdict{Off, whyNone}
	case r.counts.seen == 0, r.skipped >= a.cfg.Window:
		return verdict{Off, string(r.why)}
	case known && !canary:
		return verdict{Drifting, whyCanary}
	case r.hits.bad >= a.cfg.bound(a.cfg.HitShare):
		return verdict{Drifting, whyHit}
	}
	return verdict{Exact, ""}
}

func (a *Auditor) drifts(k rowKey, s prompt.Source) bool {
	t := a.trusts[trustKey{k.model, k.form, s}]
	return t != nil && t.drifts
}
