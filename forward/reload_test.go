package forward_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/fleet"
	"pointsman/forward"
)

// mute takes requests and never answers.
type mute struct{}

func (mute) Do(ctx context.Context, _ *fleet.Worker, _ *forward.Request) (*forward.Response, error) {
	<-ctx.Done()
	return nil, &forward.Error{Stage: forward.StageHead, Err: context.Cause(ctx)}
}

// TestAReloadLeavesRunningTimersAlone changes the idle timeout while a request
// waits for its head: that one keeps the wait it started with, the next has the
// new one, whichever is longer.
func TestAReloadLeavesRunningTimersAlone(t *testing.T) {
	for _, next := range []time.Duration{time.Minute, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			cfg := forward.DefaultConfig()
			cfg.MaxRetries, cfg.IdleTimeout = 0, 5*time.Minute
			srv := bubble(t, cfg, mute{})
			took := func() time.Duration {
				start, rec := time.Now(), httptest.NewRecorder()
				srv.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(streamBody)))
				return time.Since(start)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				if d := took(); d != 5*time.Minute {
					t.Errorf("reload to %s: the waiting request ended after %s, want its own 5 m", next, d)
				}
			})
			time.Sleep(30 * time.Second)
			cfg.IdleTimeout = next
			if err := srv.SetConfig(cfg); err != nil {
				t.Fatal(err)
			}
			if d := took(); d != next {
				t.Errorf("the request after the reload ended after %s, want %s", d, next)
			}
			cfg.MaxRetries = 99
			if srv.SetConfig(cfg) == nil {
				t.Error("an invalid configuration was taken")
			}
			wg.Wait()
		})
	}
}
