package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/config"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// effective returns the read-back of one setting.
func effective(t *testing.T, c *config.Config, name string) config.Effective {
	t.Helper()
	for _, e := range c.Effective() {
		if e.Name == name {
			return e
		}
	}
	t.Fatalf("no setting %s", name)
	return config.Effective{}
}

// TestThePoolBeatsFlagEnvFileLegacyDefault walks down the six sources of one
// setting that has them all.
func TestThePoolBeatsFlagEnvFileLegacyDefault(t *testing.T) {
	all := "prefill-timeout: 12\npools:\n  chat: {pd_prefill_timeout_sec: 15}\n"
	tests := []struct {
		name   string
		file   string
		env    map[string]string
		args   []string
		want   time.Duration
		source config.Source
	}{
		{"the pool's section over all", all, map[string]string{"INFERA_PD_PREFILL_TIMEOUT": "13"}, []string{"--pool-name", "chat", "--prefill-timeout", "14"}, 15 * time.Second, config.FromPool},
		{"the section by the variable", all, map[string]string{"INFERA_POOL_NAME": "chat"}, nil, 15 * time.Second, config.FromPool},
		{"another pool's section is not ours", all, map[string]string{"INFERA_PD_PREFILL_TIMEOUT": "13"}, []string{"--prefill-timeout", "14"}, 14 * time.Second, config.FromFlag},
		{"our variable over LoxiLB's and the file", all, map[string]string{"INFERA_PD_PREFILL_TIMEOUT": "13", "LLB_PD_PREFILL_TIMEOUT_SEC": "11"}, nil, 13 * time.Second, config.FromEnv},
		{"the file over LoxiLB's variable", all, map[string]string{"LLB_PD_PREFILL_TIMEOUT_SEC": "11"}, nil, 12 * time.Second, config.FromFile},
		{"LoxiLB's variable over the default", "{}", map[string]string{"LLB_PD_PREFILL_TIMEOUT_SEC": "11"}, nil, 11 * time.Second, "env:LLB_PD_PREFILL_TIMEOUT_SEC"},
		{"nothing said", "{}", nil, nil, 30 * time.Second, config.FromDefault},
		{"a 0 of the pool inherits", "pools: {chat: {pd_prefill_timeout_sec: 0}}", nil, []string{"--pool-name", "chat", "--prefill-timeout", "14"}, 14 * time.Second, config.FromFlag},
		{"a 0 everywhere is the default", "pools: {chat: {pd_prefill_timeout_sec: 0}}", nil, []string{"--pool-name", "chat", "--prefill-timeout", "0"}, 30 * time.Second, config.FromDefault},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parse(t, config.Forwarder, tt.env, append([]string{"--config", write(t, tt.file)}, tt.args...)...)
			if err != nil {
				t.Fatal(err)
			}
			if e := effective(t, c, "prefill-timeout"); c.Forward.PrefillTimeout != tt.want || e.Source != tt.source {
				t.Errorf("%v from %q (%s), want %v from %q", c.Forward.PrefillTimeout, e.Source, e.From, tt.want, tt.source)
			}
		})
	}
}

func TestAnExplicitZeroOfThePoolIsUnlimited(t *testing.T) {
	c, err := parse(t, config.EPP, nil, "--max-in-flight", "100", "--config", write(t, "pools: {default: {max_in_flight: 0, name_worker: off}}"))
	if err != nil {
		t.Fatal(err)
	}
	if e := effective(t, c, "max-in-flight"); c.ExtProc.MaxInFlight != 0 || e.Source != config.FromPool {
		t.Errorf("max-in-flight is %d from %s, want the pool's 0", c.ExtProc.MaxInFlight, e.Source)
	}
}

func TestDurationsTakeGosNotationAndTheUnitOfTheirName(t *testing.T) {
	tests := []struct {
		file string
		want time.Duration
	}{
		{"connect-timeout-ms: 700", 700 * time.Millisecond},
		{"connect_timeout_ms: 2s", 2 * time.Second},
		{"timeoutMemberConnect: 250", 250 * time.Millisecond},
		{"timeoutMemberConnect: 0", 500 * time.Millisecond},
	}
	for _, tt := range tests {
		c, err := parse(t, config.Forwarder, nil, "--config", write(t, tt.file))
		if err != nil {
			t.Fatal(err)
		}
		if c.Upstream.ConnectTimeout != tt.want {
			t.Errorf("%s: %s, want %s", tt.file, c.Upstream.ConnectTimeout, tt.want)
		}
	}
}

// TestOneFileDoesForBothPrograms: a key of the other program's is known, and its
// value is checked, but nothing comes of it.
func TestKVExactModeTakesLoxiLBsNumbers(t *testing.T) {
	for text, want := range map[string]string{"0": "none", "1": "zmq", "3": "zmq", "auto": "zmq"} {
		c, err := parse(t, config.EPP, nil, "--config", write(t, "pools: {default: {kvExactMode: "+text+"}}"))
		if err != nil || c.KVEventTransport != want {
			t.Errorf("kvExactMode %s: events by %v, want %s: %v", text, c, want, err)
		}
	}
	for text, want := range map[string]string{"2": `"2" is not one of auto, on, off`, "1": "needs the events"} {
		_, err := parse(t, config.EPP, nil, "--kv-event-transport", "none", "--config", write(t, "pools: {default: {kvExactMode: "+text+"}}"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("kvExactMode %s without events: %v, want it to say %q", text, err, want)
		}
	}
}

func TestOneFileDoesForBothPrograms(t *testing.T) {
	file := write(t, "grpc-port: 9102\nrequest-max-retries: 2\n")
	for _, prog := range []config.Program{config.EPP, config.Forwarder} {
		if _, err := parse(t, prog, nil, "--config", file); err != nil {
			t.Errorf("%s: %v", prog, err)
		}
	}
	bad := write(t, "request-max-retries: 9\n")
	if _, err := parse(t, config.EPP, nil, "--config", bad); err == nil || !strings.Contains(err.Error(), "request-max-retries: 9 is out of range 0 to 5") {
		t.Errorf("error = %v, want the range", err)
	}
	if _, err := parse(t, config.EPP, map[string]string{"INFERA_REQUEST_MAX_RETRIES": "9"}); err != nil {
		t.Errorf("another program's variable stops this one: %v", err)
	}
}

func TestBadPoolsAreRefusedWhole(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"a wrongly cased alias", "pools: {p: {timeoutmemberconnect: 5}}", `unknown key "timeoutmemberconnect"; did you mean "timeoutMemberConnect"?`},
		{"a wrongly cased key", "Breaker_Cooldown_S: 5", `unknown key "Breaker_Cooldown_S"; did you mean "breaker-cooldown-s"?`},
		{"a key like none", "pools: {p: {zzzzzzzz: 5}}", `unknown key "zzzzzzzz"; the nearest valid key is "`},
		{"a setting of the process", "pools: {p: {grpc-port: 5}}", `unknown key "grpc-port"`},
		{"out of range in a pool that is not ours", "pools: {p: {breaker-cooldown-s: -1}}", "pools.p.breaker-cooldown-s: -1s is out of range"},
		{"two spellings of one", "pools: {p: {timeoutMemberConnect: 100, connect_timeout_ms: 100}}", "given twice, timeoutMemberConnect before"},
		{"a pool that is no mapping", "pools: {p: 3}", "pools.p: want a mapping"},
		{"pools that are a list", "pools: [a]", "pools: want a mapping"},
		{"a pool twice", "pools:\n  p: {}\n  'p': {}", "pools.p: given twice"},
		{"a prefill timeout without pairs", "pools: {default: {pd_disagg_mode: off, pd_prefill_timeout_sec: 5}}", "--prefill-timeout: means nothing while --pd-disagg-mode is off"},
		{"all faults together", "a-b-c: 1\npools: {p: {d-e-f: 1, explain_ring: x}}", `"d-e-f"`},
		{"all faults together, values too", "a-b-c: 1\npools: {p: {d-e-f: 1, explain_ring: x}}", `pools.p.explain_ring: "x" is not a whole number`},
		{"all faults together, the first too", "a-b-c: 1\npools: {p: {d-e-f: 1, explain_ring: x}}", `"a-b-c"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(t, config.EPP, nil, "--config", write(t, tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want it to say %q", err, tt.want)
			}
		})
	}
}

func TestAFileWithoutOurPoolIsNoticed(t *testing.T) {
	c, err := parse(t, config.EPP, nil, "--config", write(t, "pools: {chat: {}, code: {}}"))
	if err != nil {
		t.Fatal(err)
	}
	if w := strings.Join(c.Warnings(), "; "); !strings.Contains(w, `pools chat, code and none for this program's, which is "default"`) {
		t.Errorf("warnings %q", w)
	}
}
