package forward

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"pointsman/admission"
	"pointsman/fleet"
	"pointsman/picker"
	"pointsman/prompt"
)

// What bounds canaries, and what they are made of.
const (
	canaryEvery   = time.Second      // at most one canary in that time (failover §2A)
	canaryTimeout = 30 * time.Second // of a canary, without Config.PrefillTimeout
	// canaryWords make a prompt of more tokens than a page of any engine's cache has
	// by default: some hand over whole pages only.
	canaryWords = 256
)

// How a canary can end, as the label result.
const (
	canaryOK      = "ok"      // 2xx with a first token
	canaryFailed  = "failed"  // no answer, 5xx, 429, or none in time
	canaryRefused = "refused" // another 4xx: the engines do not take such a request
)

// canaryResults are all of them, so that their series exist from the start.
func canaryResults() []string { return []string{canaryOK, canaryFailed, canaryRefused} }

// Canaries tries prefill/decode pairs before clients' requests do, until ctx is done:
// those that [picker.Picker.CanaryDue] names, one a second at most. A canary is a
// request for one token, which goes as any other to the pair, but for that it
// passes no gate, is repeated by nothing, and counts in
// infera_router_pair_canary_total alone. It returns nil, once all of them have ended.
func (s *Server) Canaries(ctx context.Context) error {
	c := s.canaries()
	defer c.s.legs.Wait()
	var flying sync.WaitGroup
	defer flying.Wait()
	tick := time.NewTicker(canaryEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			prefill, decode, ok := s.deps.Picker.CanaryDue(now)
			if !ok {
				continue
			}
			x, err := c.reserve(ctx, now, prefill, decode)
			if err != nil { // the fleet has changed in between, or a worker is full: another time
				continue
			}
			flying.Go(func() { c.fly(ctx, x) })
		}
	}
}

// canaries send them. They are requests of a server of their own, whose books
// nobody reads.
type canaries struct {
	s    *Server
	main *Server
}

func (s *Server) canaries() *canaries {
	bodies := admission.NewBudget(0)
	return &canaries{main: s, s: &Server{
		deps: Deps{
			Picker: s.deps.Picker, Store: s.deps.Store, Transports: s.deps.Transports, Connectors: s.deps.Connectors, Log: s.deps.Log,
		},
		metrics: newMetrics(bodies), bodies: bodies,
	}}
}

// reserve makes the canary of two workers.
func (c *canaries) reserve(ctx context.Context, now time.Time, prefill, decode *fleet.Worker) (*exchange, error) {
	cfg := *c.main.cfg.Load()
	cfg.ConnectRetrySameEP, cfg.MaxRetries, cfg.InjectRetention = 0, 0, false
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/v1/chat/completions", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	x := &exchange{
		s: c.s, cfg: &cfg, w: nowhere{}, r: r, rc: *http.NewResponseController(nowhere{}), start: now,
		id: requestID(r.Header, now), kind: prompt.Chat,
		redispatched: true,        // it is tried on these two
		undialed:     decodeDials, // and on no other
	}
	x.workers, x.tries = x.firstWorkers[:0], x.firstTries[:0]
	x.prepareHeader()
	if x.object, err = canaryBody(decode.Model, string(x.nonce[:])); err != nil {
		return nil, err
	}
	x.pick = picker.Request{ID: x.id, Model: decode.Model, ByLoad: true, Unary: true, Canary: true, Reason: prompt.ReasonOtherPath}
	a := x.newAttempt(0)
	a.picked, err = c.s.deps.Picker.Direct(now, decode.ID, prefill.ID, &x.pick)
	return x, err
}

// canaryBody asks for one token. The prompt begins as no other does: of one that the
// decode worker holds nothing would be handed over.
func canaryBody(model, nonce string) (*Object, error) {
	raw, err := json.Marshal(map[string]any{
		"model": model, "max_tokens": 1, "stream": false,
		"messages": []map[string]string{{"role": "user", "content": nonce + strings.Repeat(" again", canaryWords)}},
	})
	if err != nil {
		return nil, err
	}
	return ParseObject(raw)
}

// fly sends the canary and counts it.
func (c *canaries) fly(ctx context.Context, x *exchange) {
	limit := x.cfg.PrefillTimeout
	if limit <= 0 {
		limit = canaryTimeout
	}
	var cancel context.CancelFunc
	x.ctx, cancel = context.WithTimeoutCause(ctx, limit, errFirstToken)
	defer cancel()
	d := x.first.picked
	err := x.first.try() //nolint:contextcheck // it goes by x.ctx
	if ctx.Err() != nil {
		return // this process ends: it says nothing of them
	}
	result := x.canaryResult(err)
	c.main.metrics.canaries.WithLabelValues(result).Inc()
	if result == canaryOK {
		return
	}
	attrs := []slog.Attr{
		slog.String("prefill", d.Prefill.ID), slog.String("decode", d.Worker.ID), slog.String("result", result),
		slog.Int("status", x.status),
	}
	if err != nil {
		attrs = append(attrs, slog.String("error", clip(err.Error())))
	}
	c.s.deps.Log.LogAttrs(ctx, slog.LevelInfo, "a pair's canary failed: the two get no requests until another goes well", attrs...)
}

// canaryResult says what came of a canary.
func (x *exchange) canaryResult(err error) string {
	status := x.status
	if ans, ok := errors.AsType[*answer](err); ok {
		status = ans.status
	}
	switch {
	case err == nil && !x.firstAt.IsZero() && status < http.StatusMultipleChoices:
		return canaryOK
	case status >= http.StatusBadRequest && status < http.StatusInternalServerError && status != http.StatusTooManyRequests:
		return canaryRefused
	}
	return canaryFailed
}

// nowhere is the client of a canary.
type nowhere struct{}

// Header returns a header that nobody sees.
func (nowhere) Header() http.Header { return http.Header{} }

// Write takes everything.
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader takes any status.
func (nowhere) WriteHeader(int) {}

// FlushError does nothing, and well.
func (nowhere) FlushError() error { return nil }

// SetWriteDeadline takes any.
func (nowhere) SetWriteDeadline(time.Time) error { return nil }
