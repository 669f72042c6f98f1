package http

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/forward"
)

// ended is a context that was ended by what its Err says, as those of attempts are.
type ended struct{ why error }

func (ended) Deadline() (deadline time.Time, ok bool) { return }

func (ended) Value(any) any { return nil }

func (c ended) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (c ended) Err() error { return c.why }

func TestADialThatTheRequestsEndCutsOffIsCanceled(t *testing.T) {
	for name, why := range map[string]error{
		"the drain": errors.New("shutting down"), "a limit": context.DeadlineExceeded, "the worker's leaving": forward.ErrBlameless,
	} {
		t.Run(name, func(t *testing.T) {
			d := dialing{limit: time.Minute, metrics: newMetrics()}
			_, _, err := d.open(ended{why}, "127.0.0.1:9", false)
			if !errors.Is(err, context.Canceled) || errors.Is(err, forward.ErrBlameless) {
				t.Errorf("it fails with %v", err)
			}
			const series = "infera_router_connect_seconds"
			d.metrics.connects.WithLabelValues("canceled") // there already, or else a second one
			if n := testutil.CollectAndCount(d.metrics.connects, series); n != 1 {
				t.Errorf("%d series, want that of canceled dials alone", n)
			}
		})
	}
}
