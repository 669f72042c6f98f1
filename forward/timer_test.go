package forward_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/kvindex"
	"pointsman/picker"
)

// scripted is a transport without a network: its body gives each part after a
// pause, and it obeys cancelation.
type scripted struct {
	headAfter time.Duration
	parts     []string
	pause     time.Duration
	ended     error // what the last attempt's context ended with
}

func (s *scripted) Do(ctx context.Context, _ *fleet.Worker, _ *forward.Request) (*forward.Response, error) {
	if err := s.wait(ctx, s.headAfter); err != nil {
		return nil, &forward.Error{Stage: forward.StageDispatched, Err: err}
	}
	return &forward.Response{
		Status: 200, Length: -1, Header: http.Header{"Content-Type": {"text/event-stream"}},
		Body: &scriptedBody{s: s, ctx: ctx, parts: s.parts},
	}, nil
}

func (s *scripted) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		s.ended = context.Cause(ctx)
		return s.ended
	}
}

type scriptedBody struct {
	s     *scripted
	ctx   context.Context //nolint:containedctx // its life is the exchange's
	parts []string
}

func (b *scriptedBody) Read(p []byte) (int, error) {
	if len(b.parts) == 0 {
		return 0, io.EOF
	}
	if err := b.s.wait(b.ctx, b.s.pause); err != nil {
		return 0, &forward.Error{Stage: forward.StageBody, Err: err}
	}
	n := copy(p, b.parts[0])
	b.parts = b.parts[1:]
	return n, nil
}

func (*scriptedBody) Close() error { return nil }

func TestEachWaitHasItsOwnTimer(t *testing.T) {
	const hour = time.Hour
	many := strings.SplitAfter(strings.Repeat(tok0, 20)+done, "\n\n")
	many = many[:len(many)-1]
	tests := []struct {
		name      string
		transport scripted
		change    func(*forward.Config)
		took      time.Duration
		status    int
		code      string
	}{
		{
			name: "a head that does not come ends at the idle timeout", transport: scripted{headAfter: hour},
			took: 900 * time.Second, status: 504, code: "stream_idle_timeout",
		},
		{
			name: "each byte gives the worker the whole idle timeout again", transport: scripted{parts: many, pause: 899 * time.Second},
			took: 21 * 899 * time.Second, status: 200,
		},
		{
			name: "silence within a stream ends at the idle timeout", transport: scripted{headAfter: time.Minute, parts: []string{tok0, done}, pause: 901 * time.Second},
			took: time.Minute + 900*time.Second, status: 504, code: "stream_idle_timeout",
		},
		{
			name: "no idle timeout waits for ever", transport: scripted{headAfter: 24 * hour, parts: []string{tok0, done}, pause: hour},
			change: func(c *forward.Config) { c.IdleTimeout = 0 },
			took:   26 * hour, status: 200,
		},
		{
			name: "--ttft-timeout ends a wait for the head", transport: scripted{headAfter: hour},
			change: func(c *forward.Config) { c.TTFTTimeout = 10 * time.Second },
			took:   10 * time.Second, status: 504, code: "first_token_timeout",
		},
		{
			name: "--ttft-timeout ends a stream that only opens, whatever the other limits", transport: scripted{parts: []string{role, tok0}, pause: 9 * time.Second},
			change: func(c *forward.Config) {
				c.TTFTTimeout, c.IdleTimeout, c.PrefillTimeout, c.FirstTokenTimeout = 10*time.Second, hour, hour, hour
			},
			took: 10 * time.Second, status: 504, code: "first_token_timeout",
		},
		{
			name: "--ttft-timeout is over with the first token", transport: scripted{parts: []string{tok0, tok1, done}, pause: 9 * time.Second},
			change: func(c *forward.Config) { c.TTFTTimeout = 10 * time.Second },
			took:   27 * time.Second, status: 200,
		},
		{
			name: "--pd-first-token-timeout is not for a mixed worker", transport: scripted{headAfter: hour, parts: []string{tok0, done}},
			change: func(c *forward.Config) { c.FirstTokenTimeout, c.IdleTimeout = time.Second, 2*hour },
			took:   hour, status: 200,
		},
		{
			name: "the maximum duration ends a stream that flows", transport: scripted{parts: many, pause: time.Minute},
			change: func(c *forward.Config) { c.MaxDuration = 5*time.Minute + time.Second },
			took:   5*time.Minute + time.Second, status: 200, code: "max_duration_exceeded",
		},
		{
			name: "the maximum duration ends a wait for the head", transport: scripted{headAfter: hour},
			change: func(c *forward.Config) { c.MaxDuration = time.Minute },
			took:   time.Minute, status: 504, code: "max_duration_exceeded",
		},
		{
			name: "a worker that goes on behind [DONE] is given a second", transport: scripted{parts: []string{tok0 + done, tok1}, pause: 10 * time.Second},
			took: 11 * time.Second, status: 200,
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := forward.DefaultConfig()
				cfg.MaxRetries = 0
				if tc.change != nil {
					tc.change(&cfg)
				}
				tr := tc.transport
				srv := bubble(t, cfg, &tr)
				start := time.Now()
				rec := httptest.NewRecorder()
				srv.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(streamBody)))
				if took := time.Since(start); took != tc.took {
					t.Errorf("took %s, want %s", took, tc.took)
				}
				body := rec.Body.String()
				if rec.Code != tc.status || strings.Count(body, "error") > 0 != (tc.code != "") || !strings.Contains(body, tc.code) {
					t.Errorf("status %d, body %.300q", rec.Code, body)
				}
				if tc.code != "" && (strings.Contains(body, "[DONE]") || tr.ended == nil || errors.Is(tr.ended, context.Canceled)) {
					t.Errorf("the worker's attempt ended with %v; body %.300q", tr.ended, body)
				}
			})
		})
	}
}

// bubble returns a server with one worker behind tr.
func bubble(tb testing.TB, cfg forward.Config, tr forward.Transport) *forward.Server {
	tb.Helper()
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{{ID: "w1", Model: model, DPRank: -1, BlockSize: 16}})
	p, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	fatal(tb, err)
	srv, err := forward.New(cfg, forward.Deps{
		Picker: p, Store: store, Log: slog.New(slog.DiscardHandler),
		Transports: map[string]forward.Transport{"http": tr},
	})
	fatal(tb, err)
	return srv
}
