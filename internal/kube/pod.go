package kube

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodKey identifies a Pod. The API server gives each a UID.
func PodKey(p *corev1.Pod) types.UID {
	if p.UID == "" {
		return types.UID(p.Namespace + "/" + p.Name)
	}
	return p.UID
}

// PodCondition returns a condition's status, Unknown when the Pod has none.
func PodCondition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// ContainerStatus returns what the kubelet says of a container, nil when it has
// said nothing. It may be a restartable init container.
func ContainerStatus(p *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// Incarnation tells one process in container c of a Pod from the next. A nil c
// tells the Pods apart.
func Incarnation(p *corev1.Pod, c *corev1.ContainerStatus) string {
	id := "pod " + string(p.UID)
	if c != nil && c.ContainerID != "" {
		id += " container " + c.ContainerID
	}
	return id
}
