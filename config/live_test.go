package config_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/config"
	"pointsman/internal/testkit"
)

// live is a forwarder's running configuration of that file, and what it logs.
func live(t *testing.T, path string, args ...string) (*config.Live, *strings.Builder) {
	t.Helper()
	c, err := parse(t, config.Forwarder, nil, append([]string{"--config", path, "--pool-name", "chat"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	return config.NewLive(c, slog.New(slog.NewTextHandler(&text, nil))), &text
}

func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// value is one setting of the read-back.
func value(t *testing.T, l *config.Live, key string) config.Value {
	t.Helper()
	page, ok := l.Read("chat")
	if !ok {
		t.Fatal("no read-back of our own pool")
	}
	v, ok := page.Pools["chat"][key]
	if !ok {
		t.Fatalf("the read-back lacks %s", key)
	}
	return v
}

func TestTheReadBackIsDeclaredAndEffective(t *testing.T) {
	path := write(t, "breaker-cooldown-s: 7\npools: {chat: {timeoutMemberConnect: 2s, monitor: off, pd_prefill_timeout_sec: 0}}\n")
	c, err := parse(t, config.Forwarder, map[string]string{"LLB_PD_ORIGIN_ERR_THRESHOLD": "5"},
		"--config", path, "--pool-name", "chat", "--request-max-retries=0", "--etcd-password", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	page, _ := config.NewLive(c, slog.New(slog.DiscardHandler)).Read("")
	text, err := json.Marshal(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"generation":1,"sha256":"`,
		`"connect_timeout_ms":{"declared":2000,"effective":2000,"unit":"ms","source":"pool","clamped":false}`,
		`"timeoutMemberConnect":{"declared":2000,"effective":2000,"unit":"ms","source":"pool","clamped":false}`,
		`"monitor":{"declared":false,"effective":false,"unit":"","source":"pool","clamped":false}`,
		`"prefill_timeout":{"declared":0,"effective":30,"unit":"s","source":"default","clamped":false}`,
		`"request_max_retries":{"declared":0,"effective":0,"unit":"","source":"flag","clamped":false}`,
		`"origin_err_threshold":{"declared":5,"effective":5,"unit":"","source":"env:LLB_PD_ORIGIN_ERR_THRESHOLD","clamped":false}`,
		`"breaker_cooldown_s":{"declared":7,"effective":7,"unit":"s","source":"file","clamped":false}`,
		`"health_probe_type":{"declared":null,"effective":"http","unit":"","source":"default","clamped":false}`,
		`"live":{}}`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("lacks %s", want)
		}
	}
	if strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "etcd_") {
		t.Error("settings of the process are shown as the pool's")
	}
	if t.Failed() {
		t.Log(string(text))
	}
}

// TestBothProgramsReadBackTheSame: what one file, one environment and the same
// flags say.
func TestBothProgramsReadBackTheSame(t *testing.T) {
	path := write(t, "request-max-retries: 2\npools: {chat: {health_probe_interval: 7, max_in_flight: 9}}\n")
	var pages []string
	for _, prog := range []config.Program{config.EPP, config.Forwarder} {
		c, err := parse(t, prog, map[string]string{"INFERA_STREAM_IDLE_TIMEOUT": "60"}, "--config", path, "--pool-name", "chat")
		if err != nil {
			t.Fatal(err)
		}
		page, _ := config.NewLive(c, slog.New(slog.DiscardHandler)).Read("chat")
		text, err := json.Marshal(page)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, string(text))
	}
	if i := firstDifference(pages[0], pages[1]); i >= 0 {
		t.Errorf("the EPP's …%.200s\nthe forwarder's …%.200s", pages[0][max(0, i-100):], pages[1][max(0, i-100):])
	}
}

// firstDifference is -1 when a and b are the same.
func firstDifference(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	return -1
}

func TestAReloadChangesWhatItCanAndNamesTheRest(t *testing.T) {
	path := write(t, "pools: {chat: {request_max_retries: 1, connect_timeout_ms: 500}}")
	l, log := live(t, path)
	var got []int
	l.OnReload("room", func(c *config.Config) error { got = append(got, c.Forward.MaxRetries); return nil })
	replace(t, path, "pools: {chat: {request_max_retries: 3, connect_timeout_ms: 900}}")
	if err := l.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != 3 {
		t.Errorf("the room was given %v, want once 3", got)
	}
	if c := l.Current(); c.Upstream.ConnectTimeout != 500*time.Millisecond || c.Forward.MaxRetries != 3 {
		t.Errorf("in force: connect %s, retries %d", c.Upstream.ConnectTimeout, c.Forward.MaxRetries)
	}
	if v := value(t, l, "connect_timeout_ms"); !v.Restart || v.Declared != json.Number("900") || v.Effective != json.Number("500") {
		t.Errorf("connect_timeout_ms reads %+v, want 900 declared, 500 in force, waiting for a restart", v)
	}
	if v := value(t, l, "request_max_retries"); v.Restart || v.Effective != json.Number("3") {
		t.Errorf("request_max_retries reads %+v", v)
	}
	for _, want := range []string{"generation=2", "restart_needed=connect-timeout-ms", "request-max-retries"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, log)
		}
	}
	replace(t, path, "pools: {chat: {request_max_retries: 3, connect_timeout_ms: 500}}")
	if err := l.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := value(t, l, "connect_timeout_ms"); v.Restart || v.Declared != json.Number("500") {
		t.Errorf("taken back, connect_timeout_ms reads %+v", v)
	}
}

func TestABadFileIsRefusedWhole(t *testing.T) {
	const good = "pools: {chat: {request_max_retries: 1}}"
	tests := []struct{ name, text, want string }{
		{"an unknown key", "pools: {chat: {request_max_retries: 3, requestMaxRetries: 2}}", `unknown key "requestMaxRetries"`},
		{"out of range", "pools: {chat: {request_max_retries: 3, breaker_cooldown_s: 1d}}", "breaker_cooldown_s"},
		{"a contradiction", "pools: {chat: {request_max_retries: 3, health_probe_timeout: 9}}", "above the interval"},
		{"not YAML", "pools: {chat: {request_max_retries: 3", "config file"},
		{"empty", "\n", "empty"},
		{"a room that does not take it", "pools: {chat: {request_max_retries: 5}}", "picky: not five"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := write(t, good)
			l, log := live(t, path)
			reg := prometheus.NewRegistry()
			if err := l.Register(reg); err != nil {
				t.Fatal(err)
			}
			retries := 1
			l.OnReload("easy", func(c *config.Config) error { retries = c.Forward.MaxRetries; return nil })
			l.OnReload("picky", func(c *config.Config) error {
				if c.Forward.MaxRetries == 5 {
					return errors.New("not five")
				}
				return nil
			})
			before, _ := l.Read("chat")
			replace(t, path, tt.text)
			err := l.Reload(t.Context())
			if !errors.Is(err, config.ErrRefused) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(log.String(), "configuration refused") {
				t.Errorf("error %v, want it to say %q; log %s", err, tt.want, log)
			}
			if after, _ := l.Read("chat"); !reflect.DeepEqual(before, after) || retries != 1 {
				t.Errorf("read-back %+v, room %d: want nothing changed", after, retries)
			}
			const want = `
# HELP infera_router_config_generation Generation of the configuration in force: 1 at the start, one more with each reload that changed something.
# TYPE infera_router_config_generation gauge
infera_router_config_generation 1
# HELP pointsman_config_reloads_total Times the configuration was read anew, by what came of it: applied, unchanged, refused.
# TYPE pointsman_config_reloads_total counter
pointsman_config_reloads_total{result="applied"} 0
pointsman_config_reloads_total{result="refused"} 1
pointsman_config_reloads_total{result="unchanged"} 0
`
			if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "infera_router_config_generation", "pointsman_config_reloads_total"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheFileIsFollowed through the ways in which files change: written in place,
// renamed over, and as Kubernetes swaps the directory behind a symbolic link.
func TestTheFileIsFollowed(t *testing.T) {
	dir := t.TempDir()
	at := func(name ...string) string { return filepath.Join(append([]string{dir}, name...)...) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(at("..one"), 0o700))
	must(os.Mkdir(at("..two"), 0o700))
	replace(t, at("..one", "c.yaml"), "pools: {chat: {request_max_retries: 1}}")
	replace(t, at("..two", "c.yaml"), "pools: {chat: {request_max_retries: 2}}")
	must(os.Symlink("..one", at("..data")))
	must(os.Symlink(filepath.Join("..data", "c.yaml"), at("c.yaml")))
	l, _ := live(t, at("c.yaml"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	hup := make(chan os.Signal, 1)
	go func() { done <- l.Run(ctx, hup) }()
	defer func() {
		cancel()
		must(<-done)
	}()
	wait := func(what string, retries int) {
		t.Helper()
		testkit.Until(t, fmt.Sprintf("%s: %d retries", what, retries), func() bool { return l.Current().Forward.MaxRetries == retries },
			func() string { return fmt.Sprintf("retries are %d", l.Current().Forward.MaxRetries) })
	}
	must(os.Symlink("..two", at("..tmp")))
	must(os.Rename(at("..tmp"), at("..data")))
	wait("swapped by Kubernetes", 2)
	replace(t, at("new"), "pools: {chat: {request_max_retries: 3}}")
	must(os.Rename(at("new"), at("c.yaml")))
	wait("renamed over", 3)
	replace(t, at("c.yaml"), "pools: {chat: {request_max_retries: 4}}")
	wait("written in place", 4)
	must(os.Remove(at("c.yaml")))
	replace(t, at("c.yaml"), "pools: {chat: {request_max_retries: 5}}")
	hup <- syscall.SIGHUP
	wait("SIGHUP", 5)
	if page, _ := l.Read("chat"); page.Generation != 5 {
		t.Errorf("generation %d after four changes, want 5", page.Generation)
	}
}

func TestAnotherPoolIsNotOurs(t *testing.T) {
	l, _ := live(t, write(t, "pools: {chat: {}, code: {}}"))
	if _, ok := l.Read("code"); ok {
		t.Error("read back a pool that this program does not serve")
	}
	l.Report("admission", func() any { return map[string]int{"inflight": 3} })
	page, _ := l.Read("chat")
	if got, ok := page.Live["admission"].(map[string]int); !ok || got["inflight"] != 3 {
		t.Errorf("live reads %v", page.Live)
	}
}
