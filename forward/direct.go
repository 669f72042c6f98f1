package forward

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
)

// scored is the memory of one request's preparation; it is pooled.
type scored struct {
	sizes []int
	out   prompt.Prepared
}

// describePick fills what the picker is asked.
func (x *exchange) describePick() {
	x.pick = picker.Request{ID: x.id, Model: x.scan.Model, AnyModel: x.scan.Model == "", ByLoad: true, Unary: !x.scan.Stream}
	x.pick.NoPair = len(x.s.deps.Connectors) == 0
	if x.kind == prompt.Other {
		x.pick.NoPair = true
		x.pick.AnyRole = x.r.Method != http.MethodPost // a POST may be a generation, and half a pair does none
		x.pick.Reason = prompt.ReasonOtherPath
		return
	}
	x.pick.Retention = picker.Retention(x.scan.Retention)
	x.pick.Multimodal = x.parsed.Multimodal
	x.pick.Images = x.parsed.Images
	if x.direct { // who serves is decided: no tokenizer is loaded for it
		return
	}
	x.pick.Session = x.session()
	x.score()
}

// session names the conversation. Whose it is tells the tenant's header, which
// somebody has verified, or else what the client authenticates with.
func (x *exchange) session() string {
	h, owner := x.r.Header, ""
	if name := x.cfg.Admission.Tenant; name != "" {
		owner = h.Get(name)
	}
	if owner == "" {
		owner = h.Get("Authorization")
	}
	return picker.SessionKey(owner, h.Get("X-Conversation-Id"), x.parsed.User())
}

// score cuts the prompt into blocks, if there is something that can.
func (x *exchange) score() {
	x.pick.Reason = prompt.ReasonNoTokens
	if x.s.deps.Preparer == nil {
		return
	}
	preparer := x.s.deps.Preparer()
	if preparer == nil {
		return
	}
	sc, ok := x.s.prepared.Get().(*scored)
	if !ok {
		sc = new(scored)
	}
	x.scored = sc
	sc.sizes = x.s.deps.Picker.BlockSizes(x.scan.Model, sc.sizes[:0])
	preparer.Prepare(x.ctx, x.parsed, sc.sizes, &sc.out)
	x.report = audit.Of(x.parsed, &sc.out, x.start)
	x.pick.ByLoad = false
	x.pick.Tokens = sc.out.Tokens
	x.pick.Blocks = sc.out.Blocks
	x.pick.Approx = sc.out.Approx
	x.pick.Reason = sc.out.Reason
	x.notePrefix(x.ctx)
}

func (x *exchange) releaseScored() {
	if x.scored != nil {
		x.pick.Blocks = nil
		x.s.prepared.Put(x.scored)
		x.scored = nil
	}
}

// next finds out who serves attempt n: the gateway's choice first, if there is
// one, else the picker's, without the workers already tried.
//
// The deepest calls of a request are below it, and a goroutine keeps the stack that
// it once needed for as long as its stream is open. So decisions are written to
// where they stay, and what few requests need is in functions of its own.
func (x *exchange) next(n int, d *picker.Decision) error {
	if x.direct && n == 0 {
		err := x.named(time.Now(), d)
		if errors.Is(err, picker.ErrUnknownWorker) && !x.hasLeft() && x.awaitNamed() {
			err = x.named(time.Now(), d)
		}
		switch {
		case err == nil:
			return nil
		case x.own != "", x.hasLeft(), x.cfg.DirectFallback == DirectPolicy && errors.Is(err, picker.ErrUnknownWorker):
			x.s.metrics.directed(directPolicy)
		default:
			x.s.metrics.directed(directStale)
			return err
		}
	}
	if x.localTo != "" {
		return x.alone(d)
	}
	return x.choice(d)
}

// alone reserves a decode worker whose prefill worker has failed, and that is to do
// without.
func (x *exchange) alone(d *picker.Decision) (err error) {
	req := x.pick
	req.Alone = true
	to := x.localTo
	x.localTo = ""
	*d, err = x.s.deps.Picker.Direct(time.Now(), to, "", &req)
	return err
}

// choice asks the picker.
func (x *exchange) choice(d *picker.Decision) (err error) {
	x.pick.Tried = x.tried
	*d, err = x.s.deps.Picker.Pick(time.Now(), &x.pick)
	if x.kind == prompt.Other && !x.pick.AnyModel && errors.Is(err, picker.ErrNoModel) {
		// An engine may know models that the fleet does not, such as adapters:
		// such a request is the engine's to refuse.
		x.pick.AnyModel = true
		*d, err = x.s.deps.Picker.Pick(time.Now(), &x.pick)
	}
	return err
}

// joinTime is how long a worker that the gateway names may take to be heard of
// here: the two follow the fleet each by itself, and a worker gets its first
// requests as soon as one of them knows it.
const joinTime = 500 * time.Millisecond

// awaitNamed waits for the named workers to join the fleet, and reports whether
// they have.
func (x *exchange) awaitNamed() bool {
	late := time.NewTimer(joinTime)
	defer late.Stop()
	store := x.s.deps.Store
	for {
		changed := store.Changed()
		snap := store.Snapshot()
		if snap.Worker(x.route.worker) != nil && (x.route.prefill == "" || snap.Worker(x.route.prefill) != nil) {
			return true
		}
		select {
		case <-changed:
		case <-late.C:
			return false
		case <-x.ctx.Done():
			return false
		}
	}
}

// hasLeft reports whether the gateway named a worker that has left the fleet, as
// one does that drains: the gateway has yet to hear of it. Nothing was sent, so
// that another one can serve.
func (x *exchange) hasLeft() bool {
	if !x.cfg.DirectFailover {
		return false
	}
	snap := x.s.deps.Store.Snapshot()
	return snap.Left(x.route.worker) || x.route.prefill != "" && snap.Left(x.route.prefill)
}

// named reserves the workers that the headers name (infera.md 5.4).
func (x *exchange) named(now time.Time, d *picker.Decision) (err error) {
	if x.route.prefill != "" && (len(x.s.deps.Connectors) == 0 || x.kind == prompt.Other) {
		return errPD
	}
	req := x.pick
	req.AnyModel = x.kind == prompt.Other // the model of such a request is the engine's to judge
	req.Alone = x.route.alone && x.route.prefill == ""
	snap := x.s.deps.Store.Snapshot()
	worker, prefill := ranked(snap, x.route.worker, x.route.rank), ""
	if x.own = x.ownFallback(snap); x.own != "" {
		worker = x.own // the rank was another worker's
	}
	if x.route.prefill != "" {
		prefill = ranked(snap, x.route.prefill, x.route.prefillRank)
	}
	if *d, err = x.s.deps.Picker.Direct(now, worker, prefill, &req); err != nil {
		return stale(err)
	}
	if x.own != "" {
		x.s.metrics.fallbackLocal.Inc()
		x.s.metrics.directed(directLocal)
	} else {
		x.s.metrics.directed(directNamed)
	}
	return nil
}

func stale(err error) error { return fmt.Errorf("%w: %w", errStale, err) }
