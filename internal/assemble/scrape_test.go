package assemble_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/config"
	"pointsman/internal/assemble"
	"pointsman/internal/run"
	"pointsman/internal/testkit"
	"pointsman/picker"
)

// pickerConfig asks for the scorer of KV memory alone.
const pickerConfig = `
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: kv-cache-utilization-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
`

// TestTheUseOfKVMemoryIsAskedAndPicked: with another picker's configuration that
// scores by it, engines are asked, forwarders or not, and the emptier one is picked.
func TestTheUseOfKVMemoryIsAskedAndPicked(t *testing.T) {
	var fleet strings.Builder
	fleet.WriteString("workers:\n")
	ids := []string{}
	for _, use := range []string{"0.9", "0.25"} {
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, "sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\nsglang:token_usage{tp_rank=\"0\"} %s\n", use)
		}))
		t.Cleanup(engine.Close)
		fmt.Fprintf(&fleet, "  - {url: %q, model: m, engine: sglang, block_size: 16}\n", engine.URL)
		ids = append(ids, strings.TrimPrefix(engine.URL, "http://"))
	}
	dir := t.TempDir()
	file, epc := filepath.Join(dir, "fleet.yaml"), filepath.Join(dir, "picker.yaml")
	for name, text := range map[string]string{file: fleet.String(), epc: pickerConfig} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Parse(config.EPP, []string{
		"--discovery-backend", "static", "--static-file", file, "--config-file", epc, "--kv-event-transport", "none", "--load-reports", "off",
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
	testkit.Until(t, "the fleet", func() bool { return len(c.Store.Snapshot().Workers) == 2 })
	testkit.Until(t, "what the engines say of their memory", func() bool {
		d, err := c.Picker.Pick(time.Now(), &picker.Request{ID: "r", Model: "m", Tokens: 100})
		if err != nil {
			t.Fatal(err)
		}
		d.Done(time.Now(), breaker.Success)
		usage := map[string]float64{}
		for _, row := range c.Picker.Records()[0].Candidates {
			usage[row.Worker] = row.Usage
		}
		if usage[ids[0]] != 0.9 || usage[ids[1]] != 0.25 {
			return false // not asked yet
		}
		if d.Worker.ID != ids[1] {
			t.Errorf("picked %s, with %v", d.Worker.ID, usage)
		}
		return true
	})
	parts.Stop()
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
}
