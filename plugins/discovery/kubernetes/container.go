package kubernetes

import (
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"pointsman/internal/kube"
)

// frontendName is the container that Infera's operator appends to each worker's
// Pod (Infera deploy/operator/internal/controller/gaie.go).
const frontendName = "infera-frontend"

// workerContainer returns the name of the container whose engine listens on
// port: the one that declares it, else the first that is not the frontend, since
// the operator appends that one. configured overrides both.
func workerContainer(p *corev1.Pod, configured string, port int) string {
	if configured != "" {
		return configured
	}
	first := ""
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if slices.ContainsFunc(c.Ports, func(cp corev1.ContainerPort) bool { return int(cp.ContainerPort) == port }) {
			return c.Name
		}
		if first == "" && c.Name != frontendName {
			first = c.Name
		}
	}
	return first
}

// frontendEndpoint returns where a gateway reaches the forwarder in p, "" when p
// does not declare one. The EPP's own flag knows one port for all, and Infera's
// operator does not set it when it moves the frontend's (contract §11 E6).
func frontendEndpoint(p *corev1.Pod) string {
	if p.Status.PodIP == "" {
		return ""
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if c.Name == frontendName && len(c.Ports) > 0 {
			return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(c.Ports[0].ContainerPort)))
		}
	}
	return ""
}

// ready reports whether p's worker, in container c, may get requests.
func (r Readiness) ready(p *corev1.Pod, c *corev1.ContainerStatus) bool {
	switch r {
	case ReadyOff:
		return true
	case ReadyPod:
		return kube.PodCondition(p, corev1.PodReady) == corev1.ConditionTrue
	default:
		// All containers Ready and the Pod not: its node is lost, or a gate is shut.
		lost := kube.PodCondition(p, corev1.PodReady) == corev1.ConditionFalse &&
			kube.PodCondition(p, corev1.ContainersReady) == corev1.ConditionTrue
		return c != nil && c.Ready && !lost
	}
}

// down reports whether the container's process is known not to run.
func down(c *corev1.ContainerStatus) bool {
	return c != nil && (c.State.Terminated != nil || c.State.Waiting != nil)
}
