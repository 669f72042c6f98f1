package audit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"pointsman/prompt"
)

// Fleet returns the IDs of the workers and the names of the models that are
// there, so that the others are forgotten. It is called at each collection of
// metrics.
type Fleet func() (workers, models map[string]bool)

// Auditor keeps the books. Make it with [New].
type Auditor struct {
	cfg   Config
	fleet Fleet
	log   *slog.Logger
	now   func() time.Time

	mu       sync.Mutex
	rows     map[rowKey]*row
	trusts   map[trustKey]*trust
	canaries map[canaryKey]bool
	files    map[string]bool // models whose files make tokens
}

type trustKey struct {
	model  string
	form   Form
	source prompt.Source
}

type canaryKey struct{ model, worker string }

// New returns an auditor that has seen nothing. cfg must be valid; now is
// time.Now, but for tests.
func New(cfg Config, fleet Fleet, log *slog.Logger, now func() time.Time) *Auditor {
	return &Auditor{
		cfg: cfg, fleet: fleet, log: log, now: now,
		rows: map[rowKey]*row{}, trusts: map[trustKey]*trust{},
		canaries: map[canaryKey]bool{}, files: map[string]bool{},
	}
}

// Observe takes the numbers of a request that has been answered.
func (a *Auditor) Observe(rep Report) {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	k := rowKey{rep.Model, rep.Worker, rep.Form}
	r := a.rows[k]
	if r == nil {
		r = &row{said: verdict{Off, whyNone}}
		a.rows[k] = r
	}
	compared, differs := r.add(&a.cfg, &rep)
	if compared && rep.Source != prompt.SourceRequest {
		a.judge(now, &rep, differs)
	}
	a.say(k, r, &rep)
}

// judge tells the source of the ids what became of them, with mu held.
func (a *Auditor) judge(now time.Time, rep *Report, differs bool) {
	k := trustKey{rep.Model, rep.Form, rep.Source}
	t := a.trusts[k]
	if t == nil {
		t = &trust{}
		a.trusts[k] = t
	}
	lone := func() bool { return a.lone(k) }
	what := t.compared(&a.cfg, rep.Began, now, differs, lone)
	if what == unchanged {
		return
	}
	if what != failed {
		a.restart(k)
	}
	tellSource(a.log, what, rep, t.backoff)
}

// tellSource logs what has become of the source of rep's ids.
func tellSource(log *slog.Logger, what change, rep *Report, wait time.Duration) {
	attrs := []slog.Attr{
		slog.String("model", rep.Model), slog.String("form", string(rep.Form)), slog.String("source", rep.Source.String()),
		slog.String("worker_id", rep.Worker), slog.Int("tokens", rep.Tokens), slog.Int("engine_tokens", rep.Counted),
		slog.Duration("retry_after", wait),
	}
	ctx := context.Background() // of no request: it is the model's
	switch what {
	case demoted:
		log.LogAttrs(ctx, slog.LevelWarn, "a source of token ids drifts and is not asked for a while", attrs...)
	case failed:
		log.LogAttrs(ctx, slog.LevelInfo, "a source of token ids still drifts", attrs...)
	case healed:
		log.LogAttrs(ctx, slog.LevelInfo, "a source of token ids agrees with the engines again", attrs...)
	case unchanged:
	}
}

// lone reports whether fewer than half of the workers that were asked such
// requests differ, and the others hardly ever: then these have another tokenizer
// than the fleet, which must not cost the fleet its own (Infera defect D9).
func (a *Auditor) lone(of trustKey) bool {
	workers, wrong, others := 0, 0, 0
	for k, r := range a.rows {
		if k.model != of.model || k.form != of.form || r.counts.seen == 0 {
			continue
		}
		workers++
		if r.wrong() {
			wrong++
		} else {
			others += r.counts.bad
		}
	}
	return wrong > 0 && 2*wrong < workers && others < a.cfg.bound(a.cfg.Share)
}

// restart makes the rows of a form forget what the former source had them
// compare.
func (a *Auditor) restart(of trustKey) {
	for k, r := range a.rows {
		if k.model == of.model && k.form == of.form {
			r.restart()
		}
	}
}

// say logs a change of what is to be said of a row, once, with mu held.
func (a *Auditor) say(k rowKey, r *row, rep *Report) {
	v := a.verdict(k, r)
	if v == r.said {
		return
	}
	r.said = v
	level := slog.LevelInfo
	if v.state == Drifting || v.why == whyDrift {
		level = slog.LevelWarn
	}
	a.log.LogAttrs(context.Background(), level, "the audit of prompts has a new verdict",
		slog.String("model", k.model), slog.String("worker_id", k.worker), slog.String("form", string(k.form)),
		slog.String("state", string(v.state)), slog.String("reason", v.why), slog.String("source", rep.Source.String()),
		slog.Int("tokens", rep.Tokens), slog.Int("engine_tokens", rep.Counted),
		slog.Int("hit_tokens", rep.Hit), slog.Int("engine_cached_tokens", rep.Cached))
}

// Loaded says that a model's files have been read anew: what was held against
// them is forgotten. ok is false when they cannot make its tokens.
func (a *Auditor) Loaded(model string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.files[model] = ok
	for k := range a.trusts {
		if k.model == model && k.source == prompt.SourceFiles {
			delete(a.trusts, k)
			a.restart(k)
		}
	}
}

// hasFiles reports whether the model's files make tokens, with mu held.
func (a *Auditor) hasFiles(model string) bool { return a.files[model] }

// Canary says whether a worker's registered tokenizer canary is what the model's
// files make of the same text. It shows and is logged when it changes; it
// switches nothing, since what the launcher tokenized with need not be what the
// engine serves with, and four requests tell that.
func (a *Auditor) Canary(model, worker string, agrees bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := canaryKey{model, worker}
	had, known := a.canaries[k]
	a.canaries[k] = agrees
	switch {
	case known && had == agrees, !known && agrees:
		return
	case agrees:
		a.log.LogAttrs(context.Background(), slog.LevelInfo, "a worker's tokenizer canary agrees with the model's files again",
			slog.String("model", model), slog.String("worker_id", worker))
		return
	}
	a.log.LogAttrs(context.Background(), slog.LevelWarn, "a worker's tokenizer canary is not what the model's files make of it: is --router-tokenizer-path that worker's model?",
		slog.String("model", model), slog.String("worker_id", worker))
}

// allows reports whether source is to be asked for r.
func (a *Auditor) allows(r *prompt.Request, source prompt.Source) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.trusts[trustKey{r.Base, formOf(r), source}]
	return t == nil || !t.drifts || t.allows(&a.cfg, a.now())
}

// forget drops what is known of workers and models that are gone, with mu held.
func (a *Auditor) forget() {
	workers, models := a.fleet()
	for k := range a.rows {
		if !workers[k.worker] || !models[k.model] {
			delete(a.rows, k)
		}
	}
	for k := range a.canaries {
		if !workers[k.worker] || !models[k.model] {
			delete(a.canaries, k)
		}
	}
	for k := range a.trusts {
		if !models[k.model] {
			delete(a.trusts, k)
		}
	}
	for model := range a.files {
		if !models[model] {
			delete(a.files, model)
		}
	}
}
