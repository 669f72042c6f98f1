package kubernetes

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"pointsman/internal/testfleet"
	"pointsman/wire"
)

const a, b = "10.0.0.1:30000", "10.0.0.2:30000"

// register and deregister are what Infera's launchers send.
func (c *cluster) register(p *corev1.Pod, rec string) {
	c.t.Helper()
	c.Patch(c.t, testfleet.KubePods, p.Namespace, p.Name,
		fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, wire.Annotation, rec))
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[wire.Annotation] = rec
}

func (c *cluster) deregister(p *corev1.Pod) {
	c.t.Helper()
	c.Patch(c.t, testfleet.KubePods, p.Namespace, p.Name, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, wire.Annotation))
	delete(p.Annotations, wire.Annotation)
}

func phase(ph corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}

func TestRegisterChangeAndLeave(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	c.PutPod(t, testfleet.WorkerPod(namespace, "other", "qwen", record("10.0.0.9:1")))
	c.PutPod(t, testfleet.WorkerPod("elsewhere", "far", deployment, record("10.0.0.8:1")))
	nats := testfleet.WorkerPod(namespace, "nats-0", deployment, "")
	c.PutPod(t, nats)
	f := follow(t, c.config())
	f.Want("the listing", a+" active")
	if w := f.worker(a); w.Model != "m" || w.URL != "http://"+a || !strings.HasPrefix(w.Incarnation, "pod ") {
		t.Errorf("got %+v", w)
	}

	p := testfleet.WorkerPod(namespace, "b", deployment, "")
	c.EditPod(t, p, phase(corev1.PodPending))
	c.EditPod(t, p, phase(corev1.PodRunning))
	c.register(p, record(b))
	f.Want("a new worker", a+" active", b+" active")
	before := f.worker(b).Incarnation
	c.register(p, record(b, `,"kv_block_size":32,"kv":{"engine_block_size":1,"index_block_size":64,"tokenizer":"q","tokenizer_digest":"ab","tokenizer_canary":[1,2,3]}`))
	f.Until("its new record", func() bool { return f.worker(b).BlockSize == 32 })
	if w := f.worker(b); w.Incarnation != before || fmt.Sprint(w.Canary) != "[1 2 3]" { // D9: the canary is passed on
		t.Errorf("after a change of the record: %+v, incarnation before %q", w, before)
	}
	c.deregister(p)
	f.Want("its leaving", a+" active")
	c.register(p, record(b))
	f.Want("its return", a+" active", b+" active")
	c.delete(p)
	f.Want("the end of its Pod", a+" active")
	if got := f.metric("pointsman_kubernetes_pods", "active"); got != 1 {
		t.Errorf("%v active Pods, want 1", got)
	}
	if got := f.metric("pointsman_kubernetes_pods", "unregistered"); got != 1 {
		t.Errorf("%v Pods without a record, want 1: the NATS Pod", got)
	}
}
