package kubernetes

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"pointsman/internal/kube"
	"pointsman/internal/testfleet"
)

func TestConfigValidate(t *testing.T) {
	ok := func(*Config) {}
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want []string
	}{
		{"the defaults with a selector", ok, nil},
		{"zero stands for the defaults", func(c *Config) { *c = Config{Selector: selector} }, nil},
		{"a set selector", func(c *Config) { c.Selector = "app in (a, b),!canary" }, nil},
		{"no selector", func(c *Config) { c.Selector = " " }, []string{"--k8s-label-selector", "INFERA_K8S_LABEL_SELECTOR"}},
		{"a selector that is none", func(c *Config) { c.Selector = "((" }, []string{`selector "(("`}},
		{"a namespace that is none", func(c *Config) { c.Namespace = "a/b" }, []string{`namespace "a/b"`}},
		{"a readiness that is not known", func(c *Config) { c.Ready = "maybe" }, []string{"want worker, pod or off"}},
		{"all at once", func(c *Config) { c.Selector, c.Page, c.Timeout = "", -1, -1 }, []string{"selector", "page size -1", "timeout -1ns"}},
		{"a silence shorter than a watch", func(c *Config) { c.Silence = 30 * time.Second }, []string{"silence 30s must be longer than a watch's 45s"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := DefaultConfig()
			c.Selector = selector
			tc.edit(&c)
			err := c.Validate()
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("error %v", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
		})
	}
}

// outside makes the test run nowhere near a cluster.
func outside(t *testing.T) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
}

func TestNewSaysWhatIsMissing(t *testing.T) {
	outside(t)
	log := slog.New(slog.DiscardHandler)
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("clusters: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		"--k8s-label-selector": {},
		"set KUBECONFIG":       {Selector: selector},
		"no such file":         {Selector: selector, Config: kube.Config{Kubeconfig: filepath.Join(t.TempDir(), "none")}},
		"broken":               {Selector: selector, Config: kube.Config{Kubeconfig: broken}},
	} {
		if _, err := New(cfg, log); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one with %q", cfg, err, want)
		}
	}
}

// New must not wait for an API server that does not answer.
func TestNewDoesNotConnect(t *testing.T) {
	k := testfleet.StartKube(t)
	k.Stop()
	outside(t)
	t.Setenv("KUBECONFIG", k.Kubeconfig(t, ""))
	s, err := New(Config{Selector: selector}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if s.client.Host != k.URL || s.client.Namespace != "default" {
		t.Errorf("server %s, namespace %s", s.client.Host, s.client.Namespace)
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := &Source{metrics: newMetrics()}
	if err := s.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := s.Register(reg); err == nil {
		t.Error("registered twice")
	}
	s.metrics.observe(map[state]int{stateActive: 2}, 1)
	s.metrics.failed(io.EOF)
	s.metrics.changed(stateDown)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 6 {
		t.Errorf("%d metrics, want 6", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
