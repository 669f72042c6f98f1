package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/config"
)

// base is the least that each program needs to be told in this build.
var base = []string{"--discovery-backend", "etcd", "--etcd-endpoint", "127.0.0.1", "--kv-event-transport", "zmq"}

func parse(t *testing.T, prog config.Program, env map[string]string, args ...string) (*config.Config, error) {
	t.Helper()
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	if prog == config.Forwarder {
		args = append([]string{"--request-transport", "http"}, args...)
	}
	return config.Parse(prog, append(append([]string{}, base...), args...), lookup, &bytes.Buffer{})
}

func TestFlagBeatsEnvBeatsFileBeatsDefault(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("breaker-cooldown-s: 7\nrouter-policy: round-robin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want time.Duration
		from config.Source
	}{
		{"nothing said", nil, nil, 5 * time.Second, config.FromDefault},
		{"the file", nil, []string{"--config", file}, 7 * time.Second, config.FromFile},
		{"the file by variable", map[string]string{"INFERA_CONFIG": file}, nil, 7 * time.Second, config.FromFile},
		{"the environment over the file", map[string]string{"INFERA_BREAKER_COOLDOWN_S": "8"}, []string{"--config", file}, 8 * time.Second, config.FromEnv},
		{"an empty variable says nothing", map[string]string{"INFERA_BREAKER_COOLDOWN_S": ""}, []string{"--config", file}, 7 * time.Second, config.FromFile},
		{"the flag over all", map[string]string{"INFERA_BREAKER_COOLDOWN_S": "8"}, []string{"--config", file, "--breaker-cooldown-s=9"}, 9 * time.Second, config.FromFlag},
		{"Go's notation", nil, []string{"--breaker-cooldown-s", "1500ms"}, 1500 * time.Millisecond, config.FromFlag},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parse(t, config.EPP, tt.env, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			if c.Breaker.Cooldown != tt.want {
				t.Errorf("cooldown = %v, want %v", c.Breaker.Cooldown, tt.want)
			}
			for _, e := range c.Effective() {
				if e.Name == "breaker-cooldown-s" && e.Source != tt.from {
					t.Errorf("source = %q (from %q), want %q", e.Source, e.From, tt.from)
				}
			}
		})
	}
}

func TestInferasCommandLinesWork(t *testing.T) {
	// python -m infera.gaie and python -m infera.server --router-mode direct, as
	// Infera's operator writes them, for a fleet on etcd + http + zmq.
	epp, err := parse(t, config.EPP, map[string]string{"INFERA_EPP_DEST_PORT": "8001"},
		"--router-tokenizer-path", "Qwen/Qwen3-0.6B", "--grpc-port", "9102", "--grpc-health-port", "9103",
		"--kv-overlap-weight", "20", "--kv-prefill-overlap-weight", "2.5", "--no-secure-serving")
	if err != nil {
		t.Fatal(err)
	}
	if epp.GRPCPort != 9102 || epp.GRPCHealthPort != 9103 || epp.Picker.DestinationPort != 8001 || epp.ExtProc.DestinationPort != 8001 ||
		epp.Picker.OverlapWeight != 20 || *epp.Picker.PrefillWeight != 2.5 || epp.Picker.DecodeWeight != nil || epp.ExtProc.Secure {
		t.Errorf("read %+v", epp)
	}
	if w := strings.Join(epp.Warnings(), "; "); !strings.Contains(w, "--router-tokenizer-path") {
		t.Errorf("warnings %q do not say that the tokenizer path has no effect", w)
	}
	fwd, err := parse(t, config.Forwarder, map[string]string{"INFERA_ROUTER_MODE": "direct", "INFERA_REQUEST_MAX_RETRIES": "2", "INFERA_MIGRATION_LIMIT": "3"},
		"--host", "0.0.0.0", "--port", "8000", "--router-tokenizer-path", "/models/x", "--router-policy", "kv-aware", "--enable-profiling")
	if err != nil {
		t.Fatal(err)
	}
	if fwd.Forward.Mode != "direct" || fwd.Forward.MaxRetries != 2 || fwd.Port != 8000 {
		t.Errorf("read %+v", fwd)
	}
	if n := len(fwd.Warnings()); n != 3 {
		t.Errorf("%d warnings, want 3: %q", n, fwd.Warnings())
	}
}

func TestFaultsAreNamedWithWhatToDo(t *testing.T) {
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want string
	}{
		{"a mis-spelt flag", nil, []string{"--kv-overlap-wieght", "3"}, `did you mean "kv-overlap-weight"?`},
		{"a mis-spelt word", nil, []string{"--router-policy", "kv-awere"}, `did you mean "kv-aware"?`},
		{"out of range", nil, []string{"--breaker-failure-threshold", "-1"}, "--breaker-failure-threshold: -1 is out of range 0 to 100"},
		{"not a number in a variable", map[string]string{"INFERA_BREAKER_COOLDOWN_S": "soon"}, nil, "INFERA_BREAKER_COOLDOWN_S: "},
		{"not a number of anything", nil, []string{"--kv-overlap-weight", "NaN"}, "is not a number"},
		{"a stray word", nil, []string{"serve"}, `unexpected argument "serve"`},
		{"one port twice", nil, []string{"--grpc-port", "9090"}, "--grpc-port, --metrics-port: all are 9090"},
		{"static without its file", nil, []string{"--discovery-backend", "static"}, "needs --static-file"},
		{"half a certificate", nil, []string{"--etcd-cert", "x.pem"}, "give both or none"},
		{"a duration past its range", nil, []string{"--breaker-cooldown-s", "1e300"}, "too long"},
		{"a file that is not there", nil, []string{"--config", "/nonexistent.yaml"}, "config file:"},
		{"cooldowns upside down", nil, []string{"--breaker-cooldown-s", "70"}, "breaker maximum cooldown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(t, config.EPP, tt.env, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want it to say %q", err, tt.want)
			}
		})
	}
}

func TestAllFaultsAreReportedAtOnce(t *testing.T) {
	_, err := parse(t, config.EPP, nil, "--router-policy", "best", "--breaker-cooldown-s", "x", "--grpc-port", "700000")
	for _, want := range []string{"--router-policy", "--breaker-cooldown-s", "--grpc-port"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to name %s too", err, want)
		}
	}
}

func TestBadFilesAreRefusedWhole(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"an unknown key", "router-polcy: round-robin\n", `unknown key "router-polcy"; did you mean "router-policy"?`},
		{"a list", "- a\n", "want one mapping"},
		{"a nested key", "breaker:\n  cooldown: 3\n", "want a single value"},
		{"a key without value", "host:\n", "has no value"},
		{"a key twice in two spellings", "kv_overlap_weight: 3\nkv-overlap-weight: 4\n", "given twice"},
		{"not YAML", "a: [\n", "config file"},
		{"a file naming a file", "config: other.yaml\n", "unknown key"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := parse(t, config.EPP, nil, "--config", file)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want it to say %q", err, tt.want)
			}
		})
	}
}

func TestMisspeltVariablesAreNoticed(t *testing.T) {
	c, err := parse(t, config.EPP, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := c.Misspelt([]string{
		"INFERA_BREAKER_COOLDOWM_S=3", "INFERA_BREAKER_COOLDOWN_S=3", "INFERA_ENGINE_READY_TIMEOUT=1800", "PATH=/bin", "INFERA_EPP_DST_PORT=1",
	})
	if len(got) != 2 || !strings.Contains(got[0], "did you mean INFERA_BREAKER_COOLDOWN_S?") || !strings.Contains(got[1], "did you mean INFERA_EPP_DEST_PORT?") {
		t.Errorf("warnings %q", got)
	}
}

func TestSecretsAreNotReadBack(t *testing.T) {
	c, err := parse(t, config.EPP, map[string]string{"INFERA_ETCD_PASSWORD": "hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Effective() {
		if strings.Contains(e.Value, "hunter2") {
			t.Errorf("%s shows its secret", e.Name)
		}
		if e.Name == "etcd-password" && e.Value != "(set)" {
			t.Errorf("etcd-password reads %q, want (set)", e.Value)
		}
	}
}

// security S13: URLs of brokers may hold what lets one in.
func TestWhatURLsHoldBesideTheHostIsNotReadBack(t *testing.T) {
	const canary = "hunter2"
	for text, want := range map[string]string{
		"nats://127.0.0.1:4222":                          "nats://127.0.0.1:4222",
		"nats://user:" + canary + "@h:4222":              "nats://(set)@h:4222",
		"nats://" + canary + "@h:4222":                   "nats://(set)@h:4222",
		"a:1,tls://u:p@" + canary + "@h:1,b:2":           "a:1,tls://(set)@h:1,b:2",
		canary + "@h:1":                                  "(set)@h:1",
		"wss://h:1/path?token=" + canary + ",nats://h:2": "wss://h:1/path?(set),nats://h:2",
	} {
		for _, args := range [][]string{{"--nats-server", text}, {"--etcd-endpoint", text}} {
			c, err := parse(t, config.EPP, nil, append(args, "--discovery-backend", "kubernetes", "--k8s-label-selector", "a=b", "--kv-event-transport", "none")...)
			if err != nil {
				t.Fatalf("%s: %v", args, err)
			}
			name := strings.TrimPrefix(args[0], "--")
			for _, e := range c.Effective() {
				if e.Name == name && e.Value != want {
					t.Errorf("%s %s reads %s, want %s", args[0], text, e.Value, want)
				}
			}
			back, _ := config.NewLive(c, slog.New(slog.DiscardHandler)).Read("")
			page, err := json.Marshal(back)
			if err != nil || strings.Contains(string(page), canary) {
				t.Errorf("%s %s, %v: in the pool's read-back", args[0], text, err)
			}
		}
	}
}

func TestHelpShowsEveryGroupAndReturnsErrHelp(t *testing.T) {
	var out bytes.Buffer
	_, err := config.Parse(config.Forwarder, []string{"--help"}, os.LookupEnv, &out)
	if !errors.Is(err, config.ErrHelp) {
		t.Fatalf("error = %v, want ErrHelp", err)
	}
	for _, want := range []string{"Listening:", "Fleet:", "Picking:", "Requests:", "Breaker:", "--request-max-retries", "INFERA_REQUEST_MAX_RETRIES", "default 1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "--grpc-port") {
		t.Error("the forwarder's help shows a flag of the EPP's")
	}
}

func TestTokenizerAutoFollowsTheEvents(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{nil, "remote"},
		{[]string{"--kv-event-transport", "none"}, "none"},
		{[]string{"--router-policy", "round-robin"}, "none"},
		{[]string{"--kv-event-transport", "none", "--tokenizer", "remote"}, "remote"},
	}
	for _, tt := range tests {
		c, err := parse(t, config.EPP, nil, tt.args...)
		if err != nil {
			t.Fatal(err)
		}
		if c.Tokenizer != tt.want {
			t.Errorf("%q: tokenizer %q, want %q", tt.args, c.Tokenizer, tt.want)
		}
	}
}

func FuzzFile(f *testing.F) {
	f.Add("host: 1.2.3.4\n")
	f.Add("breaker-cooldown-s: !!float 3\nkv-overlap-weight: ~\n")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := parse(t, config.EPP, nil, "--config", file)
		if err == nil && c.Validate() != nil {
			t.Errorf("%q was taken, but is not valid: %v", text, c.Validate())
		}
	})
}
