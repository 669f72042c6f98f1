package config_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pointsman/config"
)

// TestTheOperatorsCommandLinesWork reads what Infera's operator writes into the
// sidecar and EPP of a Kubernetes fleet (gaie.go), flag for flag.
func TestTheOperatorsCommandLinesWork(t *testing.T) {
	env := map[string]string{
		"NATS_SERVER": "nats://demo-nats:4222", "INFERA_K8S_LABEL_SELECTOR": "infera.amd.com/deployment=demo",
		"INFERA_NATS_REQ_IDLE_TIMEOUT": "600", "INFERA_NATS_REQ_MAX_PENDING": "8",
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	sidecar, err := config.Parse(config.Forwarder, []string{
		"--router-mode", "direct", "--host", "0.0.0.0", "--port", "8000", "--router-tokenizer-path", "/models/x",
		"--discovery-backend", "kubernetes", "--k8s-label-selector", "infera.amd.com/deployment=demo",
		"--kv-event-transport", "zmq", "--nats-server", "nats://other:4222", "--request-transport", "nats",
	}, lookup, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if sidecar.NATS.Server != "nats://other:4222" || sidecar.NATS.IdleTimeout != 10*time.Minute || sidecar.NATS.MaxPending != 8 ||
		sidecar.Kubernetes.Selector != "infera.amd.com/deployment=demo" || sidecar.Kubernetes.Ready != "worker" {
		t.Errorf("read %+v", sidecar)
	}
	epp, err := config.Parse(config.EPP, []string{
		"--router-tokenizer-path", "/models/x", "--grpc-port", "9002", "--grpc-health-port", "9003",
		"--discovery-backend", "kubernetes", "--kv-event-transport", "zmq",
	}, lookup, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if epp.NATS.Server != "nats://demo-nats:4222" || epp.Kubernetes.Selector != "infera.amd.com/deployment=demo" || epp.Kubernetes.Ready != "pod" {
		t.Errorf("read %+v", epp)
	}
}

// TestTheOperatorsCommandLinesWithBroker reads both lines as the operator writes
// them when the deployment has a NATS, and the sidecar's when it has none.
func TestTheOperatorsCommandLinesWithBroker(t *testing.T) {
	none := func(string) (string, bool) { return "", false }
	for name, line := range map[string]struct {
		prog config.Program
		args string
		want map[string]string
	}{
		"sidecar": {
			config.Forwarder, "--router-mode direct --host 0.0.0.0 --port 8000 --router-tokenizer-path org/model " +
				"--discovery-backend kubernetes --k8s-label-selector infera.amd.com/deployment=demo " +
				"--kv-event-transport nats --nats-server nats://demo-nats:4222 --request-transport nats",
			map[string]string{"router-mode": "direct", "port": "8000", "request-transport": "nats", "kv-event-transport": "nats", "nats-server": "nats://demo-nats:4222", "inject-retention": "false"},
		},
		"sidecar without NATS": {
			config.Forwarder, "--router-mode direct --host 0.0.0.0 --port 8000 --router-tokenizer-path org/model " +
				"--discovery-backend kubernetes --k8s-label-selector infera.amd.com/deployment=demo --request-transport http",
			map[string]string{"request-transport": "http", "kv-event-transport": "nats"},
		},
		"epp": {
			config.EPP, "--router-tokenizer-path org/model --grpc-port 9002 --grpc-health-port 9003 " +
				"--discovery-backend kubernetes --k8s-label-selector infera.amd.com/deployment=demo " +
				"--kv-event-transport nats --nats-server nats://x:4222",
			map[string]string{"grpc-port": "9002", "grpc-health-port": "9003", "destination-port": "8000", "kv-event-transport": "nats", "nats-server": "nats://x:4222", "secure-serving": "true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse(line.prog, strings.Fields(line.args), none, &bytes.Buffer{})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{}
			for _, e := range c.Effective() {
				got[e.Name] = e.Value
			}
			for k, v := range line.want {
				if got[k] != v {
					t.Errorf("%s = %q, want %q", k, got[k], v)
				}
			}
		})
	}
}

func TestTheDefaultRetentionComesFromInferasVariable(t *testing.T) {
	env := map[string]string{"INFERA_ROUTER_DEFAULT_RETENTION": "short"}
	c, err := parse(t, config.Forwarder, env, "--inject-retention")
	if err != nil {
		t.Fatal(err)
	}
	if !c.Forward.InjectRetention || c.Forward.DefaultRetention != "short" {
		t.Errorf("inject %v, default %q", c.Forward.InjectRetention, c.Forward.DefaultRetention)
	}
	env["INFERA_ROUTER_DEFAULT_RETENTION"] = "ever"
	if _, err := parse(t, config.Forwarder, env); err == nil || !strings.Contains(err.Error(), "none, short, long") {
		t.Errorf("error = %v, want the words", err)
	}
}

func TestKubernetesNeedsASelector(t *testing.T) {
	_, err := config.Parse(config.EPP, []string{"--kv-event-transport", "zmq"}, func(string) (string, bool) { return "", false }, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "needs --k8s-label-selector") {
		t.Errorf("error = %v, want it to ask for the selector", err)
	}
}

// TestN16BothVariablesNameTheBroker: Infera documents NATS_URL and does not read
// it.
func TestN16BothVariablesNameTheBroker(t *testing.T) {
	tests := []struct{ flag, server, url, want string }{
		{"", "", "", "nats://127.0.0.1:4222"},
		{"", "", "nats://u:1", "nats://u:1"},
		{"", "nats://s:1", "nats://u:1", "nats://s:1"},
		{"nats://f:1", "nats://s:1", "nats://u:1", "nats://f:1"},
	}
	for _, tt := range tests {
		args := []string{"--discovery-backend", "etcd", "--etcd-endpoint", "127.0.0.1"}
		if tt.flag != "" {
			args = append(args, "--nats-server", tt.flag)
		}
		env := map[string]string{"NATS_SERVER": tt.server, "NATS_URL": tt.url}
		c, err := config.Parse(config.Forwarder, args, func(name string) (string, bool) { v, ok := env[name]; return v, ok }, &bytes.Buffer{})
		if err != nil {
			t.Fatal(err)
		}
		if c.NATS.Server != tt.want {
			t.Errorf("flag %q, environment %v: %q, want %q", tt.flag, env, c.NATS.Server, tt.want)
		}
	}
}
