package assemble_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman/config"
	"pointsman/internal/assemble"
	"pointsman/internal/run"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

// TestAForwarderIsReadyOnlyWithItsBroker: requests that go over a broker can't be
// served without it, so probes must say so, and again when it is back.
func TestAForwarderIsReadyOnlyWithItsBroker(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(fleetFile), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(config.Forwarder, []string{
		"--discovery-backend", "static", "--static-file", file, "--kv-event-transport", "none",
		"--request-transport", "nats", "--nats-server", broker.URL,
	}, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, runs, err := c.Transports()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Synced(); err == nil || !strings.Contains(err.Error(), "fleet is not known") {
		t.Errorf("before the start: %v", err)
	}
	ctx, drain := context.WithCancel(t.Context())
	parts := run.New(context.WithoutCancel(ctx))
	c.Start(parts)
	for name, part := range runs {
		parts.Go(name, part)
	}
	ready := c.Ready(ctx)
	testkit.Until(t, "readiness", func() bool { return ready() == nil })
	broker.Stop(t)
	testkit.Until(t, "the loss of the broker said", func() bool {
		err := ready()
		return err != nil && strings.Contains(err.Error(), "broker is out of reach")
	})
	broker.Start(t)
	testkit.Until(t, "readiness", func() bool { return ready() == nil })
	drain()
	if err := ready(); err == nil || err.Error() != "draining" {
		t.Errorf("while draining: %v", err)
	}
	parts.Stop()
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
}
