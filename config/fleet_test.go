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

func TestKubernetesNeedsASelector(t *testing.T) {
	_, err := config.Parse(config.EPP, []string{"--kv-event-transport", "zmq"}, func(string) (string, bool) { return "", false }, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "needs --k8s-label-selector") {
		t.Errorf("error = %v, want it to ask for the selector", err)
	}
}
