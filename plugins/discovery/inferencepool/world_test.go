package inferencepool

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
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

// world is an API server, a source that follows it, and what it made of it.
type world struct {
	*testfleet.Kube
	*testfleet.Following // once it follows

	t      *testing.T
	source *Source
}

func newCluster(t *testing.T) *world {
	t.Helper()
	w := &world{Kube: testfleet.StartKube(t), t: t}
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
	w.Following, w.source = testfleet.Follow(w.t, func(log *testkit.Log) (*Source, error) { return New(cfg, log.Logger()) })
}

func (w *world) worker(id string) *fleet.Worker {
	w.t.Helper()
	x := w.Store.Snapshot().Worker(id)
	if x == nil {
		w.t.Fatalf("no worker %s among %v", id, w.Statuses())
	}
	return x
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
