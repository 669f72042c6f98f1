package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"pointsman/internal/stack"
)

// canary is what nothing that a program tells may contain.
const canary = "CaNaRy7f3a"

// programs returns the operator's addresses and the logs of s's EPP and forwarder.
func programs(s *stack.Stack) map[string]string {
	return map[string]string{
		s.EPPs[0].Admin:             s.EPPs[0].Process().Log,
		s.Workers[0].ForwarderAdmin: s.Workers[0].Forwarder.Process().Log,
	}
}

// saidBy returns a program's log without the command line that the rig notes in it.
func saidBy(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "$ ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// leaks returns the places of text that contain what is secret.
func leaks(text, secret string) []string {
	var out []string
	for rest := text; ; {
		i := strings.Index(rest, secret)
		if i < 0 {
			return out
		}
		out = append(out, rest[max(0, i-120):min(len(rest), i+120)])
		rest = rest[i+len(secret):]
	}
}

// TestNothingSecretIsTold is security S13: a secret in every field that may hold one,
// good and bad requests, all programs at debug level, and none of it in their logs and
// pages.
func TestNothingSecretIsTold(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte(strings.Repeat(canary, 8)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const token = "admin-" + canary
	args := []string{
		"--admin-token", token, "--direct-trust", "hmac", "--direct-key-file", keys,
		"--cache-salt-mode", "tenant", "--cache-salt-key-file", keys, "--tenant-header", "x-tenant",
	}
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(1, fast()...), Policy: "kv-aware", Broker: &stack.BrokerConfig{Events: true, User: "user-" + canary + ":password-" + canary},
		EPPArgs: args, ForwarderArgs: args,
	})
	secret := func(extra map[string]string) map[string]string {
		h := map[string]string{
			"Authorization": "Bearer sk-" + canary, "Cookie": "session=" + canary, "X-Api-Key": canary, "Api-Key": canary,
			"Proxy-Authorization": "Basic " + canary, "X-Tenant": "a", "Content-Type": "application/json",
		}
		maps.Copy(h, extra)
		return h
	}
	good, refused, broken := id(t, "good"), id(t, "refused"), id(t, "broken")
	body := chatBody(t, words(1, 100)+canary, map[string]any{"cache_salt": canary, "user": canary, "metadata": map[string]string{"k": canary}})
	got := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions?api_key="+canary, bytes.NewReader(body), secret(map[string]string{"X-Request-Id": good}))
	completion := parse(t, got).Choices[0].Message.Content
	if got.status != http.StatusOK || len(completion) < 8 {
		t.Fatalf("status %d, completion %q", got.status, completion)
	}
	unknown := chatBody(t, canary, map[string]any{"model": "nobody\nserves-this", "cache_salt": canary})
	for _, door := range []string{s.URL, s.Workers[0].ForwarderURL} {
		send(t, http.DefaultClient, http.MethodPost, door+"/v1/chat/completions", bytes.NewReader(unknown), secret(map[string]string{"X-Request-Id": refused}))
		send(t, http.DefaultClient, http.MethodPost, door+"/v1/chat/completions?key="+canary, strings.NewReader(`{"messages":"`+canary), secret(map[string]string{"X-Request-Id": broken}))
		send(t, http.DefaultClient, http.MethodPost, door+"/v1/chat/completions", strings.NewReader(`{"model":["`+canary+`"],"`+canary+`":1}`), secret(map[string]string{"X-Request-Id": broken}))
	}
	for admin, log := range programs(s) {
		told := 0
		for _, page := range []string{"/metrics", "/config/effective", "/config/effective?pool=", "/debug/picks", "/requests/" + good, "/requests/" + refused, "/requests/" + broken} {
			a := send(t, http.DefaultClient, http.MethodGet, admin+page, http.NoBody, map[string]string{"Authorization": "Bearer " + token})
			if a.status == http.StatusOK {
				told++
			}
			for _, what := range []string{canary, completion} {
				for _, hit := range leaks(string(a.body), what) {
					t.Errorf("%s%s tells %q", admin, page, hit)
				}
			}
		}
		if told < 4 {
			t.Errorf("%s answered %d pages: nothing is proved", admin, told)
		}
		said := saidBy(t, log)
		for _, what := range []string{canary, completion} {
			for _, hit := range leaks(said, what) {
				t.Errorf("%s has %q", filepath.Base(log), hit)
			}
		}
		lines := 0
		for line := range strings.Lines(said) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%s: not one line of JSON: %q", filepath.Base(log), line)
			}
			if strings.Contains(line, "serves-this") {
				lines++
			}
		}
		if !strings.Contains(said, good) && lines == 0 {
			t.Errorf("%s tells of no request: nothing is proved", filepath.Base(log))
		}
	}
}

// TestTenThousandModelsMakeOneSeriesAtMost is security S14, at both programs' doors.
func TestTenThousandModelsMakeOneSeriesAtMost(t *testing.T) {
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(1, fast()...), Policy: "kv-aware"})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	series := func(admin string) int {
		raw, err := stack.Get(t.Context(), client, admin+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(raw)) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		return n
	}
	ask := func(door, model string) error {
		body := `{"model":"` + model + `","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, door+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode < 400 {
			err = fmt.Errorf("model %s: status %d", model, resp.StatusCode)
		}
		return err
	}
	for admin, door := range map[string]string{s.EPPs[0].Admin: s.URL, s.Workers[0].ForwarderAdmin: s.Workers[0].ForwarderURL} {
		for i := range 4 {
			if err := ask(door, fmt.Sprint("first-", i)); err != nil {
				t.Fatal(err)
			}
		}
		before := series(admin)
		var wg sync.WaitGroup
		for part := range 8 {
			wg.Go(func() {
				for i := range 1250 {
					if err := ask(door, fmt.Sprintf("random-%d-%d", part, i)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if after := series(admin); after > before+1 {
			t.Errorf("%s: %d series became %d", admin, before, after)
		}
	}
}
