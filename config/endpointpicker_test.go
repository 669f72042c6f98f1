package config

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pickerConfig is an EndpointPickerConfig with the given rest.
func pickerConfig(rest string) string {
	return "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n" + rest
}

const standardPlugins = `plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- name: prefix
  type: prefix-cache-scorer
  parameters: {maxPrefixBlocksToMatch: 256, lruCapacityPerServer: 31250}
- type: max-score-picker
- type: single-profile-handler
- type: lora-affinity-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2.5}
  - {pluginRef: prefix, weight: 3}
  - {pluginRef: lora-affinity-scorer}
  - pluginRef: max-score-picker
`

func TestAnEndpointPickerConfigIsMapped(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       map[string]string
		notes      []string
	}{
		{
			"the standard profile", pickerConfig(standardPlugins),
			map[string]string{"router-policy": "llm-d", "llm-d-weights": "2,2.5,3"},
			[]string{"lora-affinity-scorer"},
		},
		{
			"llm-d's group", strings.Replace(pickerConfig(standardPlugins), "inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1", 1),
			map[string]string{"router-policy": "llm-d"},
			nil,
		},
		{
			"weights are 1 where none are given, and loads add up",
			pickerConfig("plugins:\n- type: queue-scorer\n- type: active-request-scorer\nschedulingProfiles:\n- name: x\n  plugins: [{pluginRef: queue-scorer}, {pluginRef: active-request-scorer}]\n"),
			map[string]string{"router-policy": "llm-d", "llm-d-weights": "2,0,0"},
			nil,
		},
		{
			"a random picker", pickerConfig("plugins: [{type: random-picker}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]\n"),
			map[string]string{"router-policy": "random"},
			nil,
		},
		{
			"no scorer", pickerConfig("plugins: [{type: max-score-picker}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: max-score-picker}]}]\n"),
			map[string]string{"router-policy": "random"},
			nil,
		},
		{
			"a latency scorer", pickerConfig("plugins: [{type: predicted-latency-scorer}, {type: queue-scorer}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: predicted-latency-scorer}, {pluginRef: queue-scorer}]}]\n"),
			map[string]string{"router-policy": "least-latency"},
			[]string{"milliseconds"},
		},
		{
			"prefill and decode", pickerConfig(`plugins:
- {type: prefill-filter}
- {type: decode-filter}
- {type: prefix-cache-scorer}
- {type: queue-scorer}
- {type: disagg-profile-handler, parameters: {deciders: {prefill: prefix-based-pd-decider}}}
- {type: prefix-based-pd-decider, parameters: {nonCachedTokens: 257}}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 9}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: prefix-cache-scorer, weight: 50}]}
`),
			map[string]string{"router-policy": "llm-d", "llm-d-weights": "0,0,50", "pd-skip-prefill-tokens": "256"},
			[]string{`profile "prefill"`},
		},
		{
			"flow control", pickerConfig("featureGates: [flowControl, other]\nplugins: [{type: concurrency-detector, parameters: {maxConcurrency: 64}}]\nsaturationDetector: {pluginRef: concurrency-detector}\nflowControl: {maxRequests: 1k, maxBytes: 2Gi, defaultRequestTTL: 30s, priorityBands: []}\n"),
			map[string]string{"fc-mode": "enforce", "fc-max-queue-depth": "1000", "queue-max-bytes": "2147483648", "fc-max-queue-wait-ms": "30000", "fc-ep-max-inflight": "64"},
			[]string{"priorityBands", `"other"`},
		},
		{
			"a session", pickerConfig("plugins: [{type: session-affinity-scorer}]\n"), map[string]string{"session-affinity": "all"}, nil,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "epp.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := parse(EPP, "--pool-name", "p", "--config-file", path)
			if err != nil {
				t.Fatal(err)
			}
			values := c.values()
			for name, want := range tc.want {
				v := values[strings.ReplaceAll(name, "-", "_")]
				if c.text(t, name) != want || v.Source != FromPickerConfig {
					t.Errorf("%s is %q by %s, want %q", name, c.text(t, name), v.Source, want)
				}
			}
			for _, want := range tc.notes {
				if !strings.Contains(strings.Join(c.Warnings(), "\n"), want) {
					t.Errorf("warnings %q lack %q", c.Warnings(), want)
				}
			}
		})
	}
}

// text is the value in force of a setting.
func (c *Config) text(t *testing.T, name string) string {
	t.Helper()
	for _, s := range c.everyRow() {
		if s.name == name {
			return s.value.get()
		}
	}
	t.Fatalf("no setting %s", name)
	return ""
}

func TestWhatIsSaidInPointsmansOwnWordsBeatsAnEndpointPickerConfig(t *testing.T) {
	c, err := parse(EPP, "--pool-name", "p", "--config-text", pickerConfig(standardPlugins), "--router-policy", "kv-aware")
	if err != nil || c.Picker.Policy != "kv-aware" || c.Picker.LLMD.Usage != 2.5 {
		t.Errorf("policy %q, weights %v, error %v", c.Picker.Policy, c.Picker.LLMD, err)
	}
}

func TestAnEndpointPickerConfigIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"of another kind", "apiVersion: v1\nkind: ConfigMap\n", []string{"want an EndpointPickerConfig", "--config"}},
		{"with unknown plugins, all named", pickerConfig("plugins: [{type: my-scorer}, {name: x, type: other-filter}]\n"), []string{`"my-scorer" is not known here`, `plugin "x": type "other-filter"`, "queue-scorer"}},
		{"with a reference to nothing", pickerConfig("plugins: []\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"), []string{`profile default refers to a plugin "queue-scorer" that is not declared`}},
		{"with a plugin twice", pickerConfig("plugins: [{type: queue-scorer}, {type: queue-scorer}]\n"), []string{"is there twice"}},
		{"with an unknown key", pickerConfig("pluginz: []\n"), []string{"pluginz", "is not known in an EndpointPickerConfig"}},
		{"with a weight below 0", pickerConfig("plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: -1}]}]\n"), []string{"weight -1 is below 0"}},
		{"with a quantity that is none", pickerConfig("featureGates: [flowControl]\nflowControl: {maxRequests: many, defaultRequestTTL: soon}\n"), []string{`"many" is no quantity`, "defaultRequestTTL"}},
		{"that is no YAML", "{", []string{"yaml"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse(EPP, "--pool-name", "p", "--config-text", tc.text)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
		})
	}
	if _, err := parse(EPP, "--pool-name", "p", "--config-file", filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "--config-file") {
		t.Errorf("error %v", err)
	}
	if _, err := parse(EPP, "--pool-name", "p", "--config-file", "x", "--config-text", "y"); err == nil || !strings.Contains(err.Error(), "give one of them") {
		t.Errorf("error %v", err)
	}
}

func TestCommandLinesOfOtherEndpointPickers(t *testing.T) {
	for _, tc := range []struct {
		name      string
		args      []string
		discovery string
		warned    []string
	}{
		{
			"GIE's conformance manifest",
			[]string{"--pool-name", "primary", "--pool-namespace", "infra", "--zap-encoder", "json", "--grpc-port", "9002", "--grpc-health-port", "9003"},
			"inferencepool",
			[]string{"--zap-encoder has no effect"},
		},
		{
			"GIE's chart",
			[]string{"--pool-name=p", "--pool-namespace=n", "--pool-group=inference.networking.k8s.io", "-v=4", "--secure-serving", "--health-checking", "--metrics-endpoint-auth=false", "--tracing=false", "--cert-path=", "--metrics-port=9091"},
			"inferencepool",
			[]string{"--v has no effect", "--health-checking has no effect"},
		},
		{"its stand-alone chart", []string{"--endpoint-selector", "app=vllm", "--endpoint-target-ports", "8000,8001", "--v", "3"}, "inferencepool", nil},
		{"Infera's operator", []string{"--discovery-backend", "kubernetes", "--k8s-label-selector", "infera.amd.com/deployment=x", "--pool-name", "p"}, "kubernetes", nil},
		{"a selector of Infera's without a backend", []string{"--k8s-label-selector", "infera.amd.com/deployment=x", "--pool-name", "p"}, "kubernetes", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := parse(EPP, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			if c.Discovery != tc.discovery {
				t.Errorf("discovery %s, want %s", c.Discovery, tc.discovery)
			}
			for _, want := range tc.warned {
				if !strings.Contains(strings.Join(c.Warnings(), "\n"), want) {
					t.Errorf("warnings %q lack %q", c.Warnings(), want)
				}
			}
			if c.Discovery == "inferencepool" && c.Health.Enabled {
				t.Error("health probes beside the kubelet's")
			}
		})
	}
	for want, args := range map[string][]string{
		"needs --pool-name":                      {"--discovery-backend", "inferencepool"},
		"--endpoint-target-ports: give both":     {"--endpoint-selector", "a=b"},
		"needs --k8s-label-selector":             nil,
		"65536 is out of range":                  {"--endpoint-selector", "a=b", "--endpoint-target-ports", "65536"},
		`"x" is not a whole number`:              {"--endpoint-selector", "a=b", "--endpoint-target-ports", "8000,x"},
		`--llm-d-weights: "1,2": want 3 numbers`: {"--pool-name", "p", "--llm-d-weights", "1,2"},
	} {
		if _, err := parse(EPP, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", args, err, want)
		}
	}
}

func FuzzEndpointPickerConfig(f *testing.F) {
	f.Add(pickerConfig(standardPlugins))
	f.Add(pickerConfig("featureGates: [flowControl]\nflowControl: {maxRequests: 1e3, maxBytes: 1Gi}\n"))
	f.Add("kind: [")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := mapPickerConfig([]byte(text))
		if err != nil {
			return
		}
		c := Default(EPP)
		src := sources{other: m.settings, env: func(string) (string, bool) { return "", false }}
		for _, s := range c.rows() {
			if _, err := src.resolve(&s); err != nil {
				t.Fatalf("it maps to what a setting refuses: %v", err)
			}
		}
	})
}

func parse(prog Program, args ...string) (*Config, error) {
	return Parse(prog, args, func(string) (string, bool) { return "", false }, io.Discard)
}
