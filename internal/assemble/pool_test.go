package assemble_test

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"

	"pointsman/config"
	"pointsman/internal/assemble"
	"pointsman/internal/run"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

// TestAnEPPIsReadyOnlyWithItsPool: a pool that does not exist yet is waited for,
// and probes tell so.
func TestAnEPPIsReadyOnlyWithItsPool(t *testing.T) {
	k := testfleet.StartKube(t)
	pools := testfleet.KubeResource{Group: "inference.networking.k8s.io", Version: "v1", Plural: "inferencepools", Kind: "InferencePool"}
	k.Install(pools)
	cfg, err := config.Parse(config.EPP, []string{
		"--pool-name", "llama", "--pool-namespace", "serving", "--kubeconfig", k.Kubeconfig(t, ""), "--kv-event-transport", "none", "--endpoint-model", "m",
	}, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if c.Objectives() == nil {
		t.Error("the pool's objectives lead nowhere")
	}
	parts := run.New(context.WithoutCancel(t.Context()))
	c.Start(parts)
	ready := c.Ready(t.Context())
	testkit.Until(t, "the missing pool said", func() bool {
		err := ready()
		return err != nil && strings.Contains(err.Error(), "the InferencePool serving/llama does not exist")
	})
	k.Put(t, pools, map[string]any{
		"metadata": map[string]any{"namespace": "serving", "name": "llama"},
		"spec": map[string]any{
			"selector":    map[string]any{"matchLabels": map[string]any{"infera.amd.com/deployment": "llama"}},
			"targetPorts": []any{map[string]any{"number": 8000}},
		},
	})
	testkit.Until(t, "readiness", func() bool { return ready() == nil })
	k.PutPod(t, testfleet.WorkerPod("serving", "a", "llama", ""))
	testkit.Until(t, "the Pod", func() bool { return len(c.Store.Snapshot().Targets) == 1 })
	k.Delete(t, pools, "serving", "llama")
	testkit.Until(t, "the end of the pool", func() bool { return ready() != nil })
	parts.Stop()
	if err := parts.Wait(); err != nil {
		t.Error(err)
	}
}
