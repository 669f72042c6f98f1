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

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/breaker"
	"pointsman/config"
	"pointsman/internal/assemble"
	"pointsman/internal/ops"
	"pointsman/internal/run"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/picker"
)

// replica is an EPP without its door, at work until the test ends.
func replica(t *testing.T, peer string, workers ...string) *assemble.Core {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	var fleet strings.Builder
	fleet.WriteString("workers:\n")
	for _, w := range workers {
		fmt.Fprintf(&fleet, "  - {url: %q, model: m, engine: vllm, block_size: 16}\n", "http://"+w)
	}
	if err := os.WriteFile(file, []byte(fleet.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(config.EPP, []string{
		"--discovery-backend", "static", "--static-file", file, "--kv-event-transport", "none", "--load-reports", "nats", "--nats-server", "nats://127.0.0.1:1",
		"--router-policy", "kv-aware", "--warm-timeout-s", "8", "--warm-peers", peer, "--admin-token", "secret", "--health-probe=false",
	}, func(string) (string, bool) { return "", false }, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Reports.Mode = "off" // load is not what this is about
	c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	parts := run.New(context.WithoutCancel(t.Context()))
	c.Start(parts)
	t.Cleanup(func() {
		parts.Stop()
		if err := parts.Wait(); err != nil {
			t.Error(err)
		}
	})
	testkit.Until(t, "the fleet", func() bool { return len(c.Store.Snapshot().Workers) == len(workers) })
	return c
}

// turn asks c for a worker for the first n tokens of a conversation.
func turn(t *testing.T, c *assemble.Core, n int) picker.Decision {
	t.Helper()
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	d, err := c.Picker.Pick(time.Now(), &picker.Request{
		ID: "r", Model: "m", Tokens: n, Reason: "exact",
		Blocks: []kvindex.Blocks{{Size: 16, Hashes: kvindex.HashTokens(nil, 0, tokens, 16)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func opsOf(t *testing.T, c *assemble.Core) string {
	t.Helper()
	srv := httptest.NewServer(ops.Handler(ops.Deps{
		Live: c.Live, Registry: c.Registry, Store: c.Store, Picker: c.Picker, Ready: c.Ready(t.Context()), Peers: c.Peers(t.Context()),
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func answers(t *testing.T, c *assemble.Core, want string) {
	t.Helper()
	testkit.Until(t, "an answer that is "+want, func() bool {
		err := testutil.GatherAndCompare(c.Registry, strings.NewReader(""), "pointsman_warm_answers_total")
		return err != nil && strings.Contains(err.Error(), `outcome="`+want+`"`)
	})
}

// A new replica sends the second turn of a conversation to where another one has sent
// the first.
func TestANewReplicaLearnsFromAnother(t *testing.T) {
	workers := []string{"10.9.9.1:8000", "10.9.9.2:8000", "10.9.9.3:8000", "10.9.9.4:8000"}
	old := replica(t, "127.0.0.1:1", workers...) // nobody there
	testkit.Until(t, "the first replica is ready, though there is no other", func() bool { return old.Warm(time.Now()) == nil })
	first := turn(t, old, 1000)
	first.FirstToken(time.Now())
	first.Done(time.Now(), breaker.Success)
	failed := turn(t, old, 16) // nobody saw a first token of this one
	failed.Done(time.Now(), breaker.Origin)

	// It knows the worker, and three that the other does not.
	fresh := replica(t, opsOf(t, old), "10.9.9.7:8000", "10.9.9.8:8000", "10.9.9.9:8000", first.Worker.ID)
	answers(t, fresh, "taken")
	testkit.Until(t, "the second replica is ready", func() bool { return fresh.Warm(time.Now()) == nil })
	for n := range 3 {
		d := turn(t, fresh, 1100+200*n)
		d.Done(time.Now(), breaker.Neutral)
		if d.Worker.ID != first.Worker.ID || d.HitTokens < 992 {
			t.Errorf("the conversation went to %s, with a hit of %d tokens; want %s, with 992", d.Worker.ID, d.HitTokens, first.Worker.ID)
		}
	}
}

func TestAReplicaIsReadyWhateverOthersAnswer(t *testing.T) {
	t.Parallel()
	const head = `{"v":1,"picker":"","hash":"xxh3-chain","salt":"pass"}` + "\n"
	line := `{"id":"10.9.9.1:8000","rank":-1,"size":16,"blocks":60,"marks":"AAAAAAAAAAE","left_ms":60000}` + "\n"
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter, r *http.Request)
		want   string
	}{
		"whole":     {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, head+line+`{"end":1}`+"\n") }, "taken"},
		"not ready": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "failed"},
		"cut short": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, head+line) }, "refused"},
		"not all":   {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, head+line+`{"end":2}`+"\n") }, "refused"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/login", http.StatusFound) // where the token would go
		}, "failed"},
		"nonsense": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "refused"},
		"another salt": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(head, "pass", "tenant", 1)+`{"end":0}`)
		}, "refused"},
		"a later kind": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Replace(head, `"v":1`, `"v":2`, 1)+`{"end":0}`)
		}, "refused"},
		"without an end": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, head)
			for _, err := io.WriteString(w, line); err == nil; _, err = io.WriteString(w, line) {
			}
		}, "refused"},
		"hanging": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, head)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != ops.PeersPath || r.Header.Get("Authorization") != "Bearer secret" {
					t.Errorf("asked %s with %q", r.URL.Path, r.Header)
				}
				tt.answer(w, r)
			}))
			t.Cleanup(srv.Close)
			began := time.Now()
			c := replica(t, strings.TrimPrefix(srv.URL, "http://"), "10.9.9.1:8000")
			answers(t, c, tt.want)
			testkit.Until(t, "it is ready", func() bool { return c.Warm(time.Now()) == nil })
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("ready after %v", took)
			}
		})
	}
}
