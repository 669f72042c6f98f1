package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"pointsman/internal/stack"
	"pointsman/internal/testfleet"
)

// pools is the resource that a real API server learns from its definition.
var pools = testfleet.KubeResource{Group: "inference.networking.k8s.io", Version: "v1", Plural: "inferencepools", Kind: "InferencePool"}

const (
	poolPath  = "/apis/inference.networking.k8s.io/v1/namespaces/" + kubeNamespace + "/inferencepools"
	podsPath  = "/api/v1/namespaces/" + kubeNamespace + "/pods"
	poolName  = "qwen-pool"
	poolLabel = "pool" // what the pool selects by
)

// poolFleet is a fleet that an EPP finds through an InferencePool, behind Envoy.
// The test is the kubelet.
type poolFleet struct {
	*stack.Stack

	t   *testing.T
	api *cluster
}

// object is an API object.
type object = map[string]any

// startPool starts three workers, whose Pods there are not yet, and an EPP that
// follows a pool that does not exist. The forwarders find their workers by the
// records of the Pods.
func startPool(t *testing.T, kubeconfig string, cfg stack.Config) *poolFleet {
	t.Helper()
	loopback := []string{"--allow-address-cidrs", "127.0.0.0/8", "--kubeconfig", kubeconfig} // in a real cluster no worker is there
	cfg.Workers = stack.MixedWorkers(3, append(fast(), "--discovery-backend", "none")...)
	cfg.EtcdDown, cfg.Policy, cfg.Subsets = true, "round-robin", true
	cfg.EPPArgs = append(slices.Clone(loopback), "--discovery-backend", "inferencepool", "--pool-name", poolName, "--pool-namespace", kubeNamespace)
	cfg.ForwarderArgs = append(slices.Clone(loopback), "--discovery-backend", "kubernetes", "--k8s-namespace", kubeNamespace,
		"--k8s-label-selector", "infera.amd.com/deployment="+kubeDeployment)
	return &poolFleet{Stack: startFleet(t, cfg), t: t, api: clusterAt(t, kubeconfig)}
}

// must makes a request to the API server, which has to succeed.
func (f *poolFleet) must(method, path string, body any) {
	f.t.Helper()
	if status, answer := f.api.call("", method, path, body); status/100 != 2 {
		f.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
}

// pool returns the pool that selects a label and names ports.
func pool(label string, ports ...int) object {
	var numbers []object
	for _, p := range ports {
		numbers = append(numbers, object{"number": p})
	}
	return object{
		"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": object{"name": poolName, "namespace": kubeNamespace},
		"spec": object{
			"selector": object{"matchLabels": object{poolLabel: label}}, "targetPorts": numbers,
			"endpointPickerRef": object{"name": "epp", "port": object{"number": 9002}},
		},
	}
}

// reshape changes the pool's selector.
func (f *poolFleet) reshape(label string) {
	f.t.Helper()
	f.must(http.MethodPatch, poolPath+"/"+poolName, object{"spec": object{"selector": object{"matchLabels": object{poolLabel: label}}}})
}

// addPod creates the Ready Pod of a worker. With a record it is a worker with a
// forwarder beside it, without one an engine that a gateway reaches directly.
func (f *poolFleet) addPod(i int, label string, recorded bool) {
	f.t.Helper()
	host := f.host(i)
	record := ""
	if recorded {
		record = fmt.Sprintf(`{"worker_id":%q,"url":"http://%[1]s","model_name":%q,"engine":"vllm","disagg_mode":"mixed","status":"active"}`, f.Workers[i].ID, stack.DefaultModel)
	}
	p := testfleet.WorkerPod(kubeNamespace, fmt.Sprintf("w-%d", i), kubeDeployment, record)
	p.APIVersion, p.Kind = "v1", "Pod"
	p.Labels[poolLabel], p.Spec.NodeName = label, "node"
	p.Status.PodIP, p.Status.PodIPs = host, []corev1.PodIP{{IP: host}}
	f.must(http.MethodPost, podsPath, p)
	f.must(http.MethodPatch, podsPath+"/"+p.Name+"/status", object{"status": p.Status})
}

func (f *poolFleet) host(i int) string {
	f.t.Helper()
	host, _, err := net.SplitHostPort(f.Workers[i].ID)
	if err != nil {
		f.t.Fatal(err)
	}
	return host
}

// setReady is what the kubelet reports of a Pod.
func (f *poolFleet) setReady(i int, ready bool) {
	f.t.Helper()
	p := testfleet.WorkerPod(kubeNamespace, "", kubeDeployment, "")
	testfleet.SetReady(p, ready)
	f.must(http.MethodPatch, fmt.Sprintf("%s/w-%d/status", podsPath, i), object{"status": object{
		"conditions": p.Status.Conditions, "containerStatuses": p.Status.ContainerStatuses,
	}})
}

// says waits until the EPP is not ready for a reason, tells it to whoever asks,
// and has told it to the gateway: a request gets no answer from a worker.
func (f *poolFleet) says(reason string) {
	f.t.Helper()
	eventually(f.t, "the EPP to wait for the pool", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.EPPs[0].Admin+"/ready", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && (resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), reason)) {
			err = fmt.Errorf("/ready: %d %s", resp.StatusCode, text)
		}
		return err
	})
	eventually(f.t, "Envoy to listen", f.Envoy.Ready)
	eventually(f.t, "Envoy to see it", func(ctx context.Context) error {
		raw, err := stack.Get(ctx, http.DefaultClient, f.AdminURL+"/stats?filter=cluster.epp.membership_healthy")
		if err == nil && !strings.HasSuffix(strings.TrimSpace(string(raw)), ": 0") {
			err = fmt.Errorf("%s", raw)
		}
		return err
	})
	if got := chat(f.t, f.Stack, id(f.t, "early"), "hello", nil); got.status < 500 {
		f.t.Errorf("a request that nobody can place: status %d", got.status)
	}
}

// servedBy sends n requests and returns how many each worker's receipts show, by
// the workers' numbers.
func (f *poolFleet) servedBy(name string, n int, header map[string]string) map[int]int {
	f.t.Helper()
	by := map[int]int{}
	for i := range n {
		requestID := id(f.t, fmt.Sprintf("%s-%d", dashed(name), i))
		parse(f.t, chat(f.t, f.Stack, requestID, words(i, 20), maps.Clone(header)))
		by[slices.IndexFunc(f.Workers, func(w *stack.Worker) bool { return w.ID == theReceipt(f.t, f.Stack, requestID).WorkerID })]++
	}
	return by
}

// dashed makes a name fit for a request ID.
func dashed(name string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' {
			return '-'
		}
		return r
	}, name)
}

// only checks that exactly the given workers serve n requests.
func (f *poolFleet) only(name string, n int, header map[string]string, workers ...int) {
	f.t.Helper()
	if by := f.servedBy(name, n, header); !slices.Equal(slices.Sorted(maps.Keys(by)), workers) {
		f.t.Errorf("%s: served by %v, want %v", name, by, workers)
	}
}

// refused checks that a request gets 503 from the EPP, and reaches nobody.
func (f *poolFleet) refused(name string, header map[string]string) {
	f.t.Helper()
	requestID := id(f.t, dashed(name))
	if got := chat(f.t, f.Stack, requestID, "hello", header); got.status != http.StatusServiceUnavailable || !strings.Contains(string(got.body), `"code":"no_`) {
		f.t.Errorf("%s: status %d: %s", name, got.status, got.body)
	}
	if list := receipts(f.t, f.Stack, requestID); len(list) != 0 {
		f.t.Errorf("%s: receipts %+v", name, list)
	}
}

// fleetOf waits until the EPP counts n workers and takes requests from Envoy.
func (f *poolFleet) fleetOf(n int) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	if err := f.WaitFleet(ctx, "epp-0", f.EPPs[0].Admin, n, f.EPPs[0].Process()); err != nil {
		f.t.Fatal(err)
	}
	eventually(f.t, "Envoy to find the EPP healthy", func(ctx context.Context) error {
		raw, err := stack.Get(ctx, http.DefaultClient, f.AdminURL+"/stats?filter=cluster.epp.membership_healthy")
		if err == nil && !strings.HasSuffix(strings.TrimSpace(string(raw)), ": 1") {
			err = fmt.Errorf("%s", raw)
		}
		return err
	})
}

// life leads a pool through its life.
func (f *poolFleet) life() {
	f.t.Helper()
	f.says("the InferencePool " + kubeNamespace + "/" + poolName + " does not exist")
	for i, label := range []string{"a", "a", "b"} {
		f.addPod(i, label, true)
	}
	f.must(http.MethodPost, poolPath, pool("a", 8000))
	f.fleetOf(2)
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	for _, w := range f.Workers { // they go by the records of all Pods
		if err := f.WaitFleet(ctx, w.Forwarder.Name, w.ForwarderAdmin, 3, w.Forwarder.Process()); err != nil {
			f.t.Fatal(err)
		}
	}
	f.only("the pool", 6, nil, 0, 1)
	f.subsets()

	f.setReady(0, false)
	f.fleetOf(1)
	f.only("a Pod is not Ready", 4, nil, 1)
	f.setReady(0, true)
	f.fleetOf(2)
	f.only("it is again", 6, nil, 0, 1)

	f.reshape("b")
	f.fleetOf(1)
	eventually(f.t, "the other selector", func(context.Context) error {
		if by := f.servedBy("moving", 1, nil); by[2] == 0 { //nolint:contextcheck // bounded by the test
			return fmt.Errorf("served by %v", by)
		}
		return nil
	})
	f.only("another selector", 4, nil, 2)
	f.reshape("nobody")
	f.fleetOf(0)
	f.refused("a selector that matches nothing", nil)
	f.reshape("a")
	f.fleetOf(2)
	f.only("the first selector", 6, nil, 0, 1)

	f.must(http.MethodDelete, poolPath+"/"+poolName, nil)
	f.says("the InferencePool " + kubeNamespace + "/" + poolName + " does not exist")
}

// subsets confines requests over the wire, in each encoding.
func (f *poolFleet) subsets() {
	f.t.Helper()
	first, second := f.Workers[0].Destination, f.Workers[1].Destination
	for _, header := range []string{stack.HeaderSubsetText, stack.HeaderSubsetList} {
		f.only("one endpoint, "+header, 3, map[string]string{header: second}, 1)
		f.only("two endpoints, "+header, 6, map[string]string{header: first + "," + second}, 0, 1)
		f.only("one of which there is, "+header, 3, map[string]string{header: "10.9.9.9:8000," + first}, 0)
		f.only("any port of an address, "+header, 3, map[string]string{header: f.host(1)}, 1)
		f.refused("none of which there is, "+header, map[string]string{header: "10.9.9.9:8000"})
		f.refused("out of the pool, "+header, map[string]string{header: f.Workers[2].Destination})
	}
}

// fakeCluster starts an API server in the test's process that knows pools.
func fakeCluster(t *testing.T) string {
	t.Helper()
	api := testfleet.StartKube(t)
	api.Install(pools)
	return api.Kubeconfig(t, "")
}

// TestAPoolIsServedThroughEnvoy leads an InferencePool through its life, with both
// bootstraps: it is waited for, its Pods serve, a Pod that is not Ready and another
// selector move the requests, a subset hint confines them, and its end stops them.
func TestAPoolIsServedThroughEnvoy(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			startPool(t, fakeCluster(t), stack.Config{Bootstrap: b}).life()
		})
	}
}

// TestAPoolOfARealAPIServerIsServedThroughEnvoy is the same with a kube-apiserver.
func TestAPoolOfARealAPIServerIsServedThroughEnvoy(t *testing.T) {
	t.Parallel()
	kubeconfig := testfleet.StartRealKube(t)
	c := clusterAt(t, kubeconfig)
	for _, crd := range manifests(t)["crds"] {
		if status, body := c.create(crd, "", ""); status != http.StatusCreated {
			t.Fatalf("%d %s", status, body)
		}
	}
	c.create(object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": kubeNamespace}}, "", "")
	eventually(t, "the definition of pools", func(context.Context) error {
		if status, body := c.call("", http.MethodGet, poolPath, nil); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	startPool(t, kubeconfig, stack.Config{Bootstrap: stack.OriginalDst}).life()
}

// TestEachPortOfAPodIsAnEndpointBehindEnvoy has Pods of two engines each, without
// forwarders: the gateway reaches every one of them, and no longer that which a
// Pod's annotation leaves out.
func TestEachPortOfAPodIsAnEndpointBehindEnvoy(t *testing.T) {
	t.Parallel()
	f := startPool(t, fakeCluster(t), stack.Config{Bootstrap: stack.OriginalDst})
	const secondPort, secondControl = 30010, 30011
	for i := range 2 {
		f.secondEngine(i, secondPort, secondControl)
		f.addPod(i, "a", false)
	}
	f.must(http.MethodPost, poolPath, pool("a", 30000, secondPort))
	f.fleetOf(4)
	if got := f.ports(8, secondControl); len(got) != 4 {
		t.Errorf("eight requests were served at %v, want four endpoints", got)
	}
	f.must(http.MethodPatch, podsPath+"/w-0", object{"metadata": object{"annotations": object{"inference.networking.k8s.io/active-ports": fmt.Sprint(secondPort)}}})
	f.fleetOf(3)
	got := f.ports(9, secondControl)
	if want := fmt.Sprintf("%s:%d", f.host(0), secondPort); len(got) != 3 || got[f.Workers[0].ID] != 0 || got[want] == 0 {
		t.Errorf("nine requests were served at %v; %s is left out", got, f.Workers[0].ID)
	}
}

// secondEngine starts an engine beside that of a worker.
func (f *poolFleet) secondEngine(i, port, control int) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(theRig.bin, "simworker"), append(fast(), "--host", f.host(i), "--model", stack.DefaultModel,
		"--port", fmt.Sprint(port), "--control-port", fmt.Sprint(control), "--kv-events-port", "-1", "--kv-replay-port", "-1")...)
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended it
	eventually(f.t, "the second engine", func(ctx context.Context) error {
		_, err := stack.Get(ctx, http.DefaultClient, fmt.Sprintf("http://%s:%d/health", f.host(i), port))
		return err
	})
}

// ports sends n requests and returns how many each endpoint of the first two Pods
// has served, by its engine's receipts.
func (f *poolFleet) ports(n, control int) map[string]int {
	f.t.Helper()
	by := map[string]int{}
	for i := range n {
		requestID := id(f.t, fmt.Sprintf("%d-of-%d", i, n))
		parse(f.t, chat(f.t, f.Stack, requestID, words(i, 20), nil))
		for k := range 2 {
			for port, page := range map[string]string{"30000": f.Workers[k].Control, fmt.Sprint(control - 1): fmt.Sprintf("http://%s:%d", f.host(k), control)} {
				raw, err := stack.Get(f.t.Context(), http.DefaultClient, page+"/receipts?format=array&request_id="+requestID)
				if err != nil {
					f.t.Fatal(err)
				}
				if strings.Contains(string(raw), requestID) {
					by[f.host(k)+":"+port]++
				}
			}
		}
	}
	return by
}
