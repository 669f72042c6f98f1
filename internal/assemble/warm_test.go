package assemble_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman/config"
	"pointsman/internal/assemble"
	"pointsman/internal/run"
	"pointsman/internal/testkit"
)

// TestANewReplicaIsReadyWhenItKnowsTheLoad: a forwarder that has not answered yet is
// waited for, and the probe says for what.
func TestANewReplicaIsReadyWhenItKnowsTheLoad(t *testing.T) {
	answer := make(chan struct{})
	forwarder := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-answer:
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNotFound) // no forwarder of ours: nothing more to wait for
	}))
	defer forwarder.Close()
	_, port, err := net.SplitHostPort(forwarder.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err = os.WriteFile(file, fmt.Appendf(nil, "workers:\n  - {url: \"http://127.0.0.1:1\", model: m, engine: vllm, block_size: 16, endpoint: \"127.0.0.1:%s\"}\n", port), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(config.EPP, []string{
		"--discovery-backend", "static", "--static-file", file, "--kv-event-transport", "none", "--load-reports", "http",
	}, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	parts := run.New(context.WithoutCancel(t.Context()))
	c.Start(parts)
	ready := c.Ready(t.Context())
	testkit.Until(t, "the forwarder waited for", func() bool {
		err := ready()
		return err != nil && strings.Contains(err.Error(), "1 forwarders have not told their load")
	}, func() string { return fmt.Sprint(ready()) })
	close(answer)
	testkit.Until(t, "readiness", func() bool { return ready() == nil })
	parts.Stop()
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
}
