package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/internal/testfleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	namespace  = "serving"
	deployment = "llama"
	selector   = "infera.amd.com/deployment=llama"
)

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

// following is a source at work, and what it made of the fleet.
type following struct {
	t      *testing.T
	source *Source
	store  *fleet.Store
	log    *logged
}

// impatient returns a configuration that gives up in test time.
func impatient(kubeconfig string) Config {
	return Config{
		Selector: selector,
		Config: kube.Config{
			Namespace: namespace, Kubeconfig: kubeconfig,
			Timeout: 2 * time.Second, WatchFor: time.Second, Silence: 1500 * time.Millisecond,
			Backoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
		},
	}
}

// patient returns one whose watches last longer than any test.
func patient(kubeconfig string) Config {
	cfg := impatient(kubeconfig)
	cfg.WatchFor, cfg.Silence = time.Minute, 2*time.Minute
	return cfg
}

func follow(t *testing.T, cfg Config) *following {
	t.Helper()
	f := &following{t: t, store: new(fleet.Store), log: new(logged)}
	src, err := New(cfg, slog.New(slog.NewTextHandler(f.log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	f.source = src
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.store.Run(ctx, src) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	return f
}

func (f *following) until(what string, done func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("waited in vain for %s; fleet %v, log:\n%s", what, f.fleet(), f.log)
		}
	}
}

// fleet returns the workers as "id status".
func (f *following) fleet() []string {
	var out []string
	for _, w := range f.store.Snapshot().Workers {
		out = append(out, w.ID+" "+w.Status.String())
	}
	return out
}

// want waits until the fleet is the given workers, each as "id status".
func (f *following) want(what string, workers ...string) {
	f.t.Helper()
	f.until(what, func() bool { return f.store.Synced() && slices.Equal(f.fleet(), workers) })
}

// untilHeard waits until an event or a bookmark comes after the call.
func (f *following) untilHeard() {
	f.t.Helper()
	now := time.Now()
	f.until("an event or a bookmark", func() bool {
		age, ok := f.store.Staleness(now)
		return ok && age == 0
	})
}

func (f *following) worker(id string) *fleet.Worker { return f.store.Snapshot().Worker(id) }

// metric returns the sum over a metric's series, of those with the given label's
// value where one is given.
func (f *following) metric(name, label string) float64 {
	f.t.Helper()
	reg := prometheus.NewRegistry()
	if err := f.source.Register(reg); err != nil {
		f.t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if label == "" || m.GetLabel()[0].GetValue() == label {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func record(id string, more ...string) string {
	return fmt.Sprintf(`{"worker_id":%q,"url":"http://%s","model_name":"m"%s}`, id, id, strings.Join(more, ""))
}

// cluster is an API server with the test's hands on it.
type cluster struct {
	*testfleet.Kube
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{Kube: testfleet.StartKube(t), t: t}
}

func (c *cluster) config() Config { return patient(c.Kubeconfig(c.t, "")) }

// add makes a Ready worker Pod that registered id.
func (c *cluster) add(name, id string, more ...string) *corev1.Pod {
	c.t.Helper()
	p := testfleet.WorkerPod(namespace, name, deployment, record(id, more...))
	c.PutPod(c.t, p)
	return p
}

// edit changes a Pod.
func (c *cluster) edit(p *corev1.Pod, change func(*corev1.Pod)) {
	c.t.Helper()
	change(p)
	c.PutPod(c.t, p)
}

func (c *cluster) delete(p *corev1.Pod) {
	c.t.Helper()
	c.Delete(c.t, testfleet.KubePods, p.Namespace, p.Name)
}
