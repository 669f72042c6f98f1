package kube

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is a kind of object, as T.
type Resource[T any] struct {
	Group, Version, Plural, Kind string

	object, list runtime.Object
	items        func(list runtime.Object) []T // pointers into list
}

func (r Resource[T]) groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// fullName is the resource as kubectl and roles name it.
func (r Resource[T]) fullName() string {
	if r.Group == "" {
		return r.Plural
	}
	return r.Plural + "." + r.Group
}

// Pods are Pods.
func Pods() Resource[*corev1.Pod] {
	return Resource[*corev1.Pod]{
		Version: "v1", Plural: "pods", Kind: "Pod", object: new(corev1.Pod), list: new(corev1.PodList),
		items: func(list runtime.Object) []*corev1.Pod {
			l, _ := list.(*corev1.PodList)
			out := make([]*corev1.Pod, len(l.Items))
			for i := range l.Items {
				out[i] = &l.Items[i]
			}
			return out
		},
	}
}

// Custom is the resource of a CRD.
func Custom(group, version, plural, kind string) Resource[*Object] {
	return Resource[*Object]{
		Group: group, Version: version, Plural: plural, Kind: kind, object: new(Object), list: new(ObjectList),
		items: func(list runtime.Object) []*Object {
			l, _ := list.(*ObjectList)
			out := make([]*Object, len(l.Items))
			for i := range l.Items {
				out[i] = &l.Items[i]
			}
			return out
		},
	}
}

// Object is an object of a CRD, whose spec its reader decodes.
type Object struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec json.RawMessage `json:"spec,omitempty"`
}

// DeepCopyObject implements [runtime.Object].
func (o *Object) DeepCopyObject() runtime.Object {
	out := &Object{TypeMeta: o.TypeMeta, Spec: slices.Clone(o.Spec)}
	o.DeepCopyInto(&out.ObjectMeta)
	return out
}

// ObjectList is a page of a listing of [Object]s.
type ObjectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Object `json:"items"`
}

// DeepCopyObject implements [runtime.Object].
func (l *ObjectList) DeepCopyObject() runtime.Object {
	out := &ObjectList{TypeMeta: l.TypeMeta, Items: make([]Object, len(l.Items))}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		o := l.Items[i].DeepCopyObject().(*Object) //nolint:forcetypeassert // it is one
		out.Items[i] = *o
	}
	return out
}
