package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/trust"
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

// TestATicketIsGoodForOneAnswerAndHalfAMinute goes past the gateway, with the key: a
// ticket that was used, and those of clocks more than thirty seconds apart, are not
// believed.
func TestATicketIsGoodForOneAnswerAndHalfAMinute(t *testing.T) {
	t.Parallel()
	keys := keyFile(t)
	s := startFleet(t, stack.Config{
		Workers:       stack.MixedWorkers(2, fast()...),
		EPPArgs:       []string{"--direct-trust", "hmac", "--direct-key-file", keys},
		ForwarderArgs: []string{"--direct-trust", "hmac", "--direct-key-file", keys, "--direct-untrusted", "reject"},
	})
	signer := trust.StaticKeys(bytes.Repeat([]byte("k"), 64))
	w := s.Workers[0]
	for _, tc := range []struct {
		name   string
		clock  time.Duration // of the signer, ahead of ours
		times  int
		status int // of the last
	}{
		{"fresh", 0, 1, http.StatusOK},
		{"replayed", 0, 2, http.StatusForbidden},
		{"signed 28 s ago", -28 * time.Second, 1, http.StatusOK},
		{"signed 31 s ago", -31 * time.Second, 1, http.StatusForbidden},
		{"signed 25 s ahead", 25 * time.Second, 1, http.StatusOK},
		{"signed 35 s ahead", 35 * time.Second, 1, http.StatusForbidden},
	} {
		requestID := id(t, dashed(tc.name))
		route := trust.Route{RequestID: requestID, Worker: w.ID, Host: w.Destination}
		ticket := string(signer.Sign(nil, time.Now().Add(tc.clock), &route))
		status := 0
		for range tc.times {
			status = send(t, http.DefaultClient, http.MethodPost, w.ForwarderURL+"/v1/chat/completions", bytes.NewReader(chatBody(t, "hi", nil)), map[string]string{
				"X-Worker-Instance-Id": w.ID, "X-Infera-Route-Sig": ticket, "X-Request-Id": requestID, "Content-Type": "application/json",
			}).status
		}
		delivered := tc.times
		if tc.status != http.StatusOK {
			delivered--
		}
		if list := receipts(t, s, requestID); status != tc.status || len(list) != delivered {
			t.Errorf("%s: status %d, want %d; %d receipts, want %d", tc.name, status, tc.status, len(list), delivered)
		}
	}
	m, err := s.Metrics(t.Context(), w.ForwarderAdmin)
	if err != nil {
		t.Fatal(err)
	}
	for result, want := range map[string]float64{"replayed": 1, "skew": 2} {
		if got := m.Sum("pointsman_route_tickets_total", map[string]string{"result": result}); got != want {
			t.Errorf("%v tickets count as %s, want %v", got, result, want)
		}
	}
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
		epp, failed := s.Metrics(ctx, s.EPPs[0].Admin)
		if failed != nil {
			return failed
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
