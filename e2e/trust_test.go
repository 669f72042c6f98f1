package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/internal/stack"
)

// keyFile writes a file of ticket keys.
func keyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(strings.Repeat("k", 64)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTheSecondEndpointServesWhenTheFirstIsDead runs the whole of it, signed: Envoy
// cannot reach the first forwarder of the list, goes to the second, and that serves
// its own worker; the EPP's books say so.
func TestTheSecondEndpointServesWhenTheFirstIsDead(t *testing.T) {
	keys := keyFile(t)
	s := startFleet(t, stack.Config{
		Bootstrap: stack.OverrideHost, Retries: 2, Workers: stack.MixedWorkers(2, fast()...), Policy: "least-load", Unguarded: true,
		EPPArgs:       []string{"--epp-fallback-endpoints", "2", "--direct-trust", "hmac", "--direct-key-file", keys, "--breaker-failure-threshold", "0"},
		ForwarderArgs: []string{"--direct-trust", "hmac", "--direct-key-file", keys, "--direct-untrusted", "reject"},
	})
	parse(t, chat(t, s, id(t, "both"), words(1, 50), nil))
	dead, alive := s.Workers[0], s.Workers[1]
	dead.Forwarder.Kill()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Envoy.Process().Tail())
		}
	})
	const requests = 6
	for n := range requests {
		rid := id(t, fmt.Sprint(n))
		got := chat(t, s, rid, words(n+2, 50), map[string]string{
			"X-Worker-Instance-Id": "victim", "x-worker-fallback-ids": dead.ID, "X-Infera-Route-Sig": "v1,0,forged", "X-Infera-Anything": "x",
		})
		parse(t, got)
		theReceipt(t, s, rid)
		if list := receipts(t, s, rid); len(list) != 1 || list[0].WorkerID != alive.ID {
			t.Errorf("request %d: receipts %+v", n, list)
		}
	}
	m, err := s.Metrics(t.Context(), alive.ForwarderAdmin)
	if err != nil {
		t.Fatal(err)
	}
	local := m.Sum("infera_router_direct_fallback_local_total", nil)
	if local == 0 || m.Sum("pointsman_route_tickets_total", map[string]string{"result": "ok"}) < requests {
		t.Errorf("%g served as fallback, of %d", local, requests)
	}
	eventually(t, "the books of the EPP", func(ctx context.Context) error {
		epp, err := s.Metrics(ctx, s.EPPs[0].Admin)
		if err != nil {
			return err
		}
		if moved := epp.Sum("pointsman_epp_reservations_moved_total", nil); moved != local {
			return fmt.Errorf("%g reservations moved, want %g", moved, local)
		}
		return nil
	})
	// Past the gateway: whoever forges, or replays, is refused by the forwarder.
	before := m.Sum("pointsman_route_tickets_total", nil)
	got := send(t, http.DefaultClient, http.MethodPost, alive.ForwarderURL+"/v1/chat/completions", strings.NewReader(string(chatBody(t, "hi", nil))), map[string]string{
		"X-Worker-Instance-Id": alive.ID, "X-Infera-Route-Sig": fmt.Sprintf("v1,%d,%s", time.Now().Unix(), strings.Repeat("A", 43)+"="),
		"X-Request-Id": id(t, "forged"), "Content-Type": "application/json",
	})
	if got.status != http.StatusForbidden || len(receipts(t, s, id(t, "forged"))) != 0 {
		t.Errorf("a forged ticket: status %d", got.status)
	}
	if m, err = s.Metrics(t.Context(), alive.ForwarderAdmin); err != nil || m.Sum("pointsman_route_tickets_total", nil) != before+1 {
		t.Errorf("not counted, %v", err)
	}
}
