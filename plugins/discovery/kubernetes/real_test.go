package kubernetes

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"pointsman/internal/kube"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// realPods changes Pods of a real API server.
type realPods struct {
	pods *kube.View[*corev1.Pod]
	t    *testing.T
}

func (r *realPods) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *realPods) create(p *corev1.Pod) {
	r.t.Helper()
	status := p.Status
	r.check(r.pods.Request("POST").Body(p).Do(r.t.Context()).Into(p))
	p.Status = status
	r.report(p)
}

// report is what a kubelet does.
func (r *realPods) report(p *corev1.Pod) {
	r.t.Helper()
	body, err := json.Marshal(map[string]any{"status": p.Status})
	r.check(err)
	r.check(r.pods.Request("PATCH").SetHeader("Content-Type", string(types.MergePatchType)).Name(p.Name).
		SubResource("status").Body(body).Do(r.t.Context()).Error())
}

func (r *realPods) register(p *corev1.Pod, rec string) {
	r.t.Helper()
	body := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, wire.Annotation, rec)
	r.check(r.pods.Request("PATCH").SetHeader("Content-Type", string(types.MergePatchType)).Name(p.Name).
		Body(body).Do(r.t.Context()).Error())
}

func (r *realPods) delete(p *corev1.Pod, grace int64) {
	r.t.Helper()
	r.check(r.pods.Request("DELETE").Name(p.Name).
		Body(&metav1.DeleteOptions{GracePeriodSeconds: &grace}).Do(r.t.Context()).Error())
}

// The same story as in the process, told by a real API server.
func TestARealAPIServer(t *testing.T) {
	cfg := impatient(testfleet.StartRealKube(t))
	cfg.Namespace, cfg.Page = "default", 2
	cfg.WatchFor, cfg.Silence = 6*time.Second, 20*time.Second
	client, err := kube.NewClient(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	view, err := kube.Select(client, kube.Pods(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	r := &realPods{pods: view, t: t}
	made := func(name, id string) *corev1.Pod {
		p := testfleet.WorkerPod("default", name, deployment, record(id))
		p.Spec.NodeName = "node"
		r.create(p)
		return p
	}
	p := made("a", a)
	made("b", b)
	made("c", "10.0.0.3:30000")
	f := follow(t, cfg)
	f.Want("the listing, in two pages", a+" active", b+" active", "10.0.0.3:30000 active")

	r.register(p, record("10.0.0.1:30001"))
	f.Want("another port", "10.0.0.1:30001 active", b+" active", "10.0.0.3:30000 active")
	crash(p)
	r.report(p)
	f.Want("a crash", "10.0.0.1:30001 dead", b+" active", "10.0.0.3:30000 active")
	restart(p)
	testfleet.SetReady(p, true)
	r.report(p)
	f.Want("its recovery", "10.0.0.1:30001 active", b+" active", "10.0.0.3:30000 active")
	r.delete(p, 30)
	f.Want("its termination", "10.0.0.1:30001 draining", b+" active", "10.0.0.3:30000 active")
	r.delete(p, 0)
	f.Want("its end", b+" active", "10.0.0.3:30000 active")
	f.Until("the next watch", func() bool { return f.metric("pointsman_kubernetes_watches_total", "") >= 2 })
	made("d", "10.0.0.4:30000")
	f.Want("what comes on it", b+" active", "10.0.0.3:30000 active", "10.0.0.4:30000 active")
	if got := f.metric("pointsman_kubernetes_lists_total", ""); got != 1 {
		t.Errorf("%v listings, want 1: the second watch goes on where the first ended\n%s", got, f.Log)
	}
}
