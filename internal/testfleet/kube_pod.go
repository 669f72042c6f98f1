package testfleet

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pointsman/wire"
)

// WorkerPod returns a Pod of an Infera deployment as the operator makes it and
// the kubelet reports it: Running and Ready, an engine's container at port 30000
// and the frontend's. record is the worker's registration, "" for none.
func WorkerPod(namespace, name, deployment, record string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{
				"app.kubernetes.io/managed-by": "infera-operator",
				"infera.amd.com/deployment":    deployment,
				"infera.amd.com/service":       "worker",
			},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "worker", Image: "engine", Ports: []corev1.ContainerPort{{ContainerPort: 30000}}},
			{Name: "infera-frontend", Image: "frontend", Ports: []corev1.ContainerPort{{Name: "frontend", ContainerPort: 8000}}},
		}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, HostIP: "192.168.0.1",
			ContainerStatuses: []corev1.ContainerStatus{
				running("worker", "containerd://"+name+"-0"),
				running("infera-frontend", "containerd://"+name+"-frontend"),
			},
		},
	}
	SetReady(p, true)
	if record != "" {
		p.Annotations = map[string]string{wire.Annotation: record}
	}
	return p
}

func running(name, id string) corev1.ContainerStatus {
	started := true
	return corev1.ContainerStatus{
		Name: name, Image: name, ImageID: name, ContainerID: id, Ready: true, Started: &started,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}
}

// SetReady sets the readiness of the Pod's first container, and the conditions
// that follow from all containers'.
func SetReady(p *corev1.Pod, ready bool) {
	p.Status.ContainerStatuses[0].Ready = ready
	all := corev1.ConditionTrue
	for _, c := range p.Status.ContainerStatuses {
		if !c.Ready {
			all = corev1.ConditionFalse
		}
	}
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.ContainersReady, Status: all},
		{Type: corev1.PodReady, Status: all},
	}
}

// PutPod creates or replaces a Pod and sets p's UID and version to the server's.
func (k *Kube) PutPod(tb testing.TB, p *corev1.Pod) {
	tb.Helper()
	p.ResourceVersion = k.Put(tb, KubePods, p)
	k.mu.Lock()
	defer k.mu.Unlock()
	stored := k.store.objects[KubePods][p.Namespace+"/"+p.Name]
	p.UID = stored.uid()
}

// EditPod makes a change to a Pod and puts it.
func (k *Kube) EditPod(tb testing.TB, p *corev1.Pod, change func(*corev1.Pod)) {
	tb.Helper()
	change(p)
	k.PutPod(tb, p)
}

// Terminate is the change that a Pod's deletion makes first.
func Terminate(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }

// Readiness is the change of a Pod's readiness.
func Readiness(ready bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) { SetReady(p, ready) }
}
