package stack

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.yaml.in/yaml/v3"
)

func TestSubnetsAreExclusive(t *testing.T) {
	a, err := takeSubnet()
	if err != nil {
		t.Fatal(err)
	}
	b, err := takeSubnet()
	if err != nil {
		t.Fatal(err)
	}
	defer b.release()
	if a.prefix == b.prefix || net.ParseIP(a.addr(10)) == nil {
		t.Errorf("subnets %s and %s, address %s", a.prefix, b.prefix, a.addr(10))
	}
	if err := a.release(); err != nil {
		t.Error(err)
	}
	if err := a.release(); err != nil {
		t.Errorf("released twice: %v", err)
	}
}

func TestEtcdKeepsItsDataOverARestart(t *testing.T) {
	n, err := takeSubnet()
	if err != nil {
		t.Fatal(err)
	}
	defer n.release()
	e := newEtcd(n.addr(etcdHost), t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err = e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err = client.Put(ctx, "/k", "v"); err != nil {
		t.Fatal(err)
	}
	watched := client.Watch(ctx, "/k") // an open stream must not hold up Stop
	e.Stop()
	e.Stop() // again does nothing
	if err = e.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err = e.Start(ctx); err != nil {
		t.Errorf("Start while it runs: %v", err)
	}
	got, err := client.Get(ctx, "/k")
	if err != nil || got.Count != 1 {
		t.Errorf("after a restart: %v, %v", got, err)
	}
	_ = watched
}

var testAddresses = Addresses{
	Gateway: "127.1.2.1:8080", Admin: "127.1.2.1:9901",
	EPPs: []string{"127.1.2.3:9002", "127.1.2.4:9002"}, Workers: []string{"127.1.2.10:8000", "127.1.2.11:8000"},
}

// addressesIn returns host:port of every socket_address below v.
func addressesIn(v any, found []string) []string {
	switch v := v.(type) {
	case map[string]any:
		if socket, ok := v["socket_address"].(map[string]any); ok {
			host, _ := socket["address"].(string)
			port, _ := yaml.Marshal(socket["port_value"])
			return append(found, host+":"+strings.TrimSpace(string(port)))
		}
		for _, inner := range v {
			found = addressesIn(inner, found)
		}
	case []any:
		for _, inner := range v {
			found = addressesIn(inner, found)
		}
	}
	return found
}

func TestBootstrapsCarryTheGivenAddressesAndNoOthers(t *testing.T) {
	for b, want := range map[Bootstrap][]string{
		OriginalDst:  append([]string{testAddresses.Gateway, testAddresses.Admin}, testAddresses.EPPs...),
		OverrideHost: append(append([]string{testAddresses.Gateway, testAddresses.Admin}, testAddresses.EPPs...), testAddresses.Workers...),
	} {
		raw, err := b.YAML(testAddresses)
		if err != nil {
			t.Fatal(err)
		}
		var doc map[string]any
		if err := yaml.Unmarshal(raw, &doc); err != nil {
			t.Fatal(err)
		}
		got := addressesIn(doc, nil)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has addresses %v, want %v", b, got, want)
		}
		if strings.Contains(string(raw), "10.0.0.") {
			t.Errorf("%s keeps an address of the sample", b)
		}
	}
	open := testAddresses
	open.Unguarded = true
	if raw, err := OriginalDst.YAML(open); err != nil || strings.Contains(string(raw), "header_mutation") || !strings.Contains(string(raw), "ext_proc") {
		t.Errorf("unguarded: error %v in\n%s", err, raw)
	}
	for _, b := range []Bootstrap{OriginalDst, OverrideHost} {
		raw, err := b.YAML(testAddresses)
		if err != nil || !strings.Contains(string(raw), "num_retries: 0") {
			t.Errorf("%s: error %v, or it has retries", b, err)
		}
	}
	again := testAddresses
	again.Retries = 2
	if raw, err := OverrideHost.YAML(again); err != nil || !strings.Contains(string(raw), "num_retries: 2") {
		t.Errorf("with retries: error %v in\n%s", err, raw)
	}
	bad := testAddresses
	bad.Gateway = "nonsense"
	if _, err := OriginalDst.YAML(bad); err == nil {
		t.Error("a bad address was accepted")
	}
}

// TestEnvoyAcceptsTheBootstraps runs Envoy's own validation on what a stack
// writes and on the samples as they are shipped.
func TestEnvoyAcceptsTheBootstraps(t *testing.T) {
	envoy, err := FindEnvoy("../..")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"../../manifests/envoy/original-dst.yaml", "../../manifests/envoy/override-host.yaml"}
	for _, b := range []Bootstrap{OriginalDst, OverrideHost} {
		dir := filepath.Join(t.TempDir(), b.String())
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path, err := writeBootstrap(dir, b, testAddresses)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	for _, path := range files {
		out, err := exec.Command(envoy, "--mode", "validate", "-c", path).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

func TestFindingEnvoySaysHowToGetIt(t *testing.T) {
	t.Setenv("POINTSMAN_ENVOY", "")
	if _, err := FindEnvoy(t.TempDir()); err == nil || !strings.Contains(err.Error(), "make tools") {
		t.Errorf("error %v, want it to name make tools", err)
	}
}

func TestMetricsAreSummedByLabels(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`# TYPE a gauge
a{x="1",y="1"} 2
a{x="1",y="2"} 3
a{x="2",y="2"} 10
# TYPE c_total counter
c_total 4
# TYPE h histogram
h_bucket{le="1"} 1
h_bucket{le="+Inf"} 6
h_sum 9
h_count 6
# TYPE s summary
s_count 1
s_sum 1
`))
	}))
	defer server.Close()
	s := &Stack{client: server.Client()}
	m, err := s.Metrics(t.Context(), server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		labels map[string]string
		want   float64
	}{
		{"a", nil, 15},
		{"a", map[string]string{"x": "1"}, 5},
		{"a", map[string]string{"x": "1", "y": "2"}, 3},
		{"a", map[string]string{"z": "1"}, 0},
		{"c_total", nil, 4},
		{"h", nil, 6},
		{"none", nil, 0},
	} {
		if got := m.Sum(tt.name, tt.labels); got != tt.want {
			t.Errorf("%s%v = %g, want %g", tt.name, tt.labels, got, tt.want)
		}
	}
	if _, err := s.Metrics(t.Context(), server.URL+"/../%zz"); err == nil {
		t.Error("a bad address gave metrics")
	}
	if _, err := ParseMetrics([]byte("a{")); err == nil {
		t.Error("bad text gave metrics")
	}
}

func TestAStackRefusesToStartWithoutItsParts(t *testing.T) {
	_, err := Start(t.Context(), Config{Bin: t.TempDir(), Envoy: "/no/envoy"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"no epp in", "no forwarder in", "no simworker in", "make tools", "0 workers"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
}

// TestAStackWhosePartDiesSaysWhichAndLeavesNothingRunning starts a stack of
// programs that are not what they are called.
func TestAStackWhosePartDiesSaysWhichAndLeavesNothingRunning(t *testing.T) {
	envoy, err := FindEnvoy("../..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for name, script := range map[string]string{
		"epp": "echo no such flag; exit 2", "forwarder": "exec sleep 600", "simworker": "exec sleep 600",
	} {
		if err = os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = Start(ctx, Config{Bin: bin, Envoy: envoy, Dir: dir, Workers: MixedWorkers(2)})
	if err == nil || !strings.Contains(err.Error(), "epp-0") || !strings.Contains(err.Error(), "| no such flag") {
		t.Errorf("error %v, want it to name epp-0 and to quote its log", err)
	}
	left, _ := exec.Command("pgrep", "-f", bin).Output()
	if len(left) > 0 {
		t.Errorf("still running: %s", left)
	}
	if _, err := os.Stat(filepath.Join(dir, "epp-0.log")); err != nil {
		t.Errorf("the logs are gone: %v", err)
	}
}
