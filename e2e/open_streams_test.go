package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// TestFiftyOpenStreamsOutliveAnEPPOffTheirPath kills one of two EPPs while fifty
// answers that it sees nothing of are flowing: each comes whole, and new requests
// soon go by the other.
func TestFiftyOpenStreamsOutliveAnEPPOffTheirPath(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := startFleet(t, stack.Config{
				Bootstrap: b, Workers: stack.MixedWorkers(3, "--prefill-tokens-per-s", "100000", "--decode-ms-per-step", "20"),
				Policy: "kv-aware", OverlapWeight: 20, EPPs: 2, Unseen: true,
			})
			const streams = 50
			results := make([]traffic.Result, streams)
			var flowing, all sync.WaitGroup
			flowing.Add(streams)
			for i := range streams {
				all.Go(func() {
					begun := sync.OnceFunc(flowing.Done)
					defer begun()
					results[i] = speak(t, s, id(t, fmt.Sprint(i)), words(i, 20), 300, traffic.Observer{First: func(*traffic.Result) { begun() }})
				})
			}
			flowing.Wait()
			killed := time.Now()
			s.EPPs[0].Kill()
			failedOver(t, s, killed)
			all.Wait()
			for i := range results {
				switch r := &results[i]; {
				case r.Outcome() != traffic.OK:
					t.Errorf("cut: %s", describe(r))
				case r.End.Before(killed):
					t.Errorf("%s had ended before the kill", r.Request.ID)
				}
			}
		})
	}
}

var errRefused = errors.New("new requests fail")

// failedOver waits until new requests succeed ten times in a row.
func failedOver(t *testing.T, s *stack.Stack, killed time.Time) {
	t.Helper()
	good, n := 0, 0
	eventually(t, "the fail-over", func(context.Context) error {
		n++
		if a := chat(t, s, id(t, fmt.Sprint("new", n)), "hello", nil); a.status != http.StatusOK { //nolint:contextcheck // bounded by the test
			good = 0
			return fmt.Errorf("%w: %d", errRefused, a.status)
		}
		if good++; good < 10 {
			return fmt.Errorf("%w: only %d in a row did not", errRefused, good)
		}
		return nil
	})
	t.Logf("%v after the kill ten new requests in a row had succeeded; %d were sent", time.Since(killed), n)
}
