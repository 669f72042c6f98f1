package inferencepool

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	namespace = "serving"
	poolName  = "llama-pool"
)

var pools = testfleet.KubeResource{Group: poolGroup, Version: "v1", Plural: "inferencepools", Kind: "InferencePool"}

func intent(group string, kind intentKind) testfleet.KubeResource {
	return testfleet.KubeResource{Group: group, Version: "v1alpha2", Plural: kind.plural, Kind: kind.kind}
}

type object = map[string]any

func pool(selector string, ports ...int) object {
	var numbers []object
	for _, p := range ports {
		numbers = append(numbers, object{"number": p})
	}
	return object{
		"metadata": object{"namespace": namespace, "name": poolName},
		"spec": object{
			"selector": object{"matchLabels": object{"app": selector}}, "targetPorts": numbers,
			"endpointPickerRef": object{"name": "epp", "port": object{"number": 9002}},
		},
	}
}

// pod is a Ready Pod without a record.
func pod(name, app, ip string) *corev1.Pod {
	p := testfleet.WorkerPod(namespace, name, "llama", "")
	p.Labels["app"] = app
	p.Status.PodIP = ip
	return p
}

// logged is what a source has said.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) count(what string) int { return strings.Count(l.String(), what) }

// world is an API server, a source that follows it, and what it made of it.
type world struct {
	*testfleet.Kube
	t      *testing.T
	source *Source
	store  *fleet.Store
	log    *logged
}

func newCluster(t *testing.T) *world {
	t.Helper()
	w := &world{Kube: testfleet.StartKube(t), t: t, store: new(fleet.Store), log: new(logged)}
	w.Install(pools)
	return w
}

// config is that of a pool of the cluster, whose watches outlast any test.
func (w *world) config() Config {
	return Config{
		Pool: poolName, Model: "m",
		Config: kube.Config{
			Namespace: namespace, Kubeconfig: w.Kubeconfig(w.t, ""), Timeout: 2 * time.Second,
			WatchFor: time.Minute, Silence: 2 * time.Minute, Backoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		},
	}
}

func (w *world) follow(cfg Config) {
	w.t.Helper()
	src, err := New(cfg, slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		w.t.Fatal(err)
	}
	w.source = src
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- w.store.Run(ctx, src) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Watch: %v", err)
		}
	})
}

func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain for %s; fleet %v, waiting %v, log:\n%s", what, w.fleet(), w.source.Waiting(), w.log)
		}
	}
}

// fleet returns the workers as "id status".
func (w *world) fleet() []string {
	var out []string
	for _, x := range w.store.Snapshot().Workers {
		out = append(out, x.ID+" "+x.Status.String())
	}
	return out
}

// want waits until the fleet is the given workers, each as "id status".
func (w *world) want(what string, workers ...string) {
	w.t.Helper()
	w.until(what, func() bool { return w.store.Synced() && slices.Equal(w.fleet(), workers) })
}

func (w *world) worker(id string) *fleet.Worker {
	w.t.Helper()
	x := w.store.Snapshot().Worker(id)
	if x == nil {
		w.t.Fatalf("no worker %s among %v", id, w.fleet())
	}
	return x
}

func (w *world) edit(p *corev1.Pod, change func(*corev1.Pod)) {
	w.t.Helper()
	change(p)
	w.PutPod(w.t, p)
}

func record(id string, more ...string) string {
	return fmt.Sprintf(`{"worker_id":%q,"url":"http://%s","model_name":"llama","engine":"vllm","kv_block_size":32,"kv_events_endpoint":"tcp://10.0.0.1:5557"%s}`, id, id, strings.Join(more, ""))
}

func registered(p *corev1.Pod, rec string) *corev1.Pod {
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[wire.Annotation] = rec
	return p
}

func terminating(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }

func readiness(ready bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) { testfleet.SetReady(p, ready) }
}

// engine is an endpoint that tells its models; it returns its address.
func engine(t *testing.T, handler http.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return netip.MustParseAddrPort(s.Listener.Addr().String())
}

func poolObject(spec string) *kube.Object {
	return &kube.Object{ObjectMeta: metav1.ObjectMeta{Name: poolName}, Spec: []byte(spec)}
}
