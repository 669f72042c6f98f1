package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/internal/stack"
)

// pageOf returns what a program reads back of the pool, without its live part,
// and the generation.
func pageOf(t *testing.T, admin string) (generation int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin+"/config/effective?pool=chat", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d, %v: %s", admin, res.StatusCode, err, raw)
	}
	var page map[string]json.RawMessage
	if err = json.Unmarshal(raw, &page); err != nil {
		t.Fatal(err)
	}
	if err = json.Unmarshal(page["generation"], &generation); err != nil {
		t.Fatal(err)
	}
	if page["live"] == nil {
		t.Errorf("%s reads back nothing live", admin)
	}
	delete(page, "live")
	out, err := json.Marshal(page)
	if err != nil {
		t.Fatal(err)
	}
	return generation, string(out)
}

// TestAReloadReachesBothProgramsAndABadFileNeither edits the file that a running
// EPP and the forwarders share.
func TestAReloadReachesBothProgramsAndABadFileNeither(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pools.yaml")
	save := func(section string) {
		t.Helper()
		next := path + ".new"
		if err := os.WriteFile(next, []byte("pools:\n  chat: {tokenize_timeout_ms: 2000, "+section+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, path); err != nil {
			t.Fatal(err)
		}
	}
	save("request_max_retries: 1, fc_mode: off")
	args := []string{"--config", path, "--pool-name", "chat"}
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(2, fast()...), EPPArgs: args, ForwarderArgs: args})
	admins := []string{s.EPPs[0].Admin, s.Workers[0].ForwarderAdmin, s.Workers[1].ForwarderAdmin}
	// settled waits until a counter of every program has that value.
	settled := func(name string, labels map[string]string, want float64) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for _, admin := range admins {
			for {
				m, err := s.Metrics(t.Context(), admin)
				if err != nil {
					t.Fatal(err)
				}
				if m.Sum(name, labels) == want {
					break
				}
				if <-tick.C; time.Now().After(deadline) {
					t.Fatalf("%s: %s is %v, want %v", admin, name, m.Sum(name, labels), want)
				}
			}
		}
	}
	same := func(generation int, contains ...string) {
		t.Helper()
		_, first := pageOf(t, admins[0])
		for _, want := range contains {
			if !strings.Contains(first, want) {
				t.Errorf("the EPP's read-back lacks %s: %s", want, first)
			}
		}
		for _, admin := range admins {
			if got, text := pageOf(t, admin); got != generation || text != first {
				t.Errorf("%s: generation %d, want %d; %s\nthe EPP: %s", admin, got, generation, text, first)
			}
		}
	}
	same(1, `"request_max_retries":{"declared":1,"effective":1,"unit":"","source":"pool","clamped":false}`)

	save("request_max_retries: 3, fc_mode: observe, connect_timeout_ms: 700")
	settled("infera_router_config_generation", nil, 2)
	same(2,
		`"request_max_retries":{"declared":3,"effective":3,"unit":"","source":"pool","clamped":false}`,
		`"fc_mode":{"declared":"observe","effective":"observe","unit":"","source":"pool","clamped":false}`)

	save("request_max_retries: 2, fc_mod: enforce")
	settled("pointsman_config_reloads_total", map[string]string{"result": "refused"}, 1)
	same(2, `"request_max_retries":{"declared":3,"effective":3,`)

	// The EPP's own door: what it takes changes with the file, for the next request.
	long := map[string]string{"Content-Type": "application/json"}
	post := func() int {
		t.Helper()
		return send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(chatBody(t, words(1, 1000), nil)), long).status
	}
	if got := post(); got != http.StatusOK {
		t.Errorf("before the change: status %d", got)
	}
	save("request_max_retries: 2, health_probe: false, max_body: 2000")
	settled("infera_router_config_generation", nil, 3)
	same(3, `"request_max_retries":{"declared":2,"effective":2,`, `"health_probe":{"declared":false,"effective":false,`, `"max_body":{"declared":2000,"effective":2000,`)
	if got := post(); got != http.StatusRequestEntityTooLarge {
		t.Errorf("above the new limit: status %d", got)
	}
}

// TestABadConfigurationOpensNoPort starts both programs with faults of several
// kinds: each names all of them and ends before it listens.
func TestABadConfigurationOpensNoPort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.yaml")
	text := "timeoutMemberconnect: 5\npools: {chat: {health_probe_timeout: 9, request_max_retries: 7}}\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"epp", "forwarder"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(theRig.bin, program), "--config", path, "--pool-name", "chat",
			"--discovery-backend", "etcd", "--etcd-endpoint", "127.0.0.1:1", "--breaker-cooldown-s", "70")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err == nil {
			t.Fatalf("%s started", program)
		}
		for _, want := range []string{`did you mean "timeoutMemberConnect"?`, "breaker maximum cooldown", "request_max_retries: 7 is out of range 0 to 5", "probe timeout 9s is above the interval 5s"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s does not say %q: %s", program, want, out.String())
			}
		}
		if strings.Contains(out.String(), `"level"`) {
			t.Errorf("%s logged, so it had begun: %s", program, out.String())
		}
	}
}
