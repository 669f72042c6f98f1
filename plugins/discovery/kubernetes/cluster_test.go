package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	namespace  = "serving"
	deployment = "llama"
	selector   = "infera.amd.com/deployment=llama"
)

// following is a source at work, and what it made of the fleet.
type following struct {
	*testfleet.Following
	t      *testing.T
	source *Source
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
	f, source := testfleet.Follow(t, func(log *testkit.Log) (*Source, error) { return New(cfg, log.Logger()) })
	return &following{Following: f, t: t, source: source}
}

// untilHeard waits until an event or a bookmark comes after the call.
func (f *following) untilHeard() {
	f.t.Helper()
	now := time.Now()
	f.Until("an event or a bookmark", func() bool {
		age, ok := f.Store.Staleness(now)
		return ok && age == 0
	})
}

func (f *following) worker(id string) *fleet.Worker { return f.Store.Snapshot().Worker(id) }

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

func (c *cluster) delete(p *corev1.Pod) {
	c.t.Helper()
	c.Delete(c.t, testfleet.KubePods, p.Namespace, p.Name)
}
