package assemble_test

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/config"
	"pointsman/internal/assemble"
	"pointsman/internal/run"
	"pointsman/internal/testkit"
)

// fleetFile names one worker, whose publisher nobody listens at.
const fleetFile = `workers:
- url: http://127.0.0.1:1
  model: m
  kv_events: tcp://127.0.0.1:1
  block_size: 16
`

func core(t *testing.T) *assemble.Core {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(fleetFile), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(config.EPP, []string{
		"--discovery-backend", "static", "--static-file", file, "--kv-event-transport", "zmq",
	}, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTheEventFeedOpensWithTheFirstPreparer holds for both orders of Start and
// Preparer, and without a Preparer nothing is opened.
func TestTheEventFeedOpensWithTheFirstPreparer(t *testing.T) {
	tests := []struct {
		name          string
		before, after bool
		want          float64
	}{
		{"asked before the start", true, false, 1},
		{"asked after the start", false, true, 1},
		{"never asked", false, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := core(t)
			parts := run.New(t.Context())
			if tt.before {
				c.Preparer()
			}
			c.Start(parts)
			if tt.after {
				c.Preparer()
			}
			testkit.Until(t, "the first fleet", c.Store.Synced)
			if tt.want > 0 {
				testkit.Until(t, "the subscriptions", func() bool { return subscriptions(t, c) == tt.want })
			} else if got := subscriptions(t, c); got != 0 {
				t.Errorf("%v subscriptions, want none", got)
			}
			parts.Stop()
			if err := parts.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func subscriptions(t *testing.T, c *assemble.Core) float64 {
	t.Helper()
	n, err := testutil.GatherAndCount(c.Registry, "pointsman_kvevents_subscriptions")
	if err != nil || n != 1 {
		t.Fatalf("%d series of subscriptions: %v", n, err)
	}
	page, err := c.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range page {
		if family.GetName() == "pointsman_kvevents_subscriptions" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 0
}
