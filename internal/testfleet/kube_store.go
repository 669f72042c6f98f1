package testfleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// KubeResource is a kind of object that a [Kube] serves.
type KubeResource struct{ Group, Version, Plural, Kind string }

// KubePods are Pods, which every [Kube] serves.
var KubePods = KubeResource{Version: "v1", Plural: "pods", Kind: "Pod"} //nolint:gochecknoglobals // an immutable name

func (r KubeResource) apiVersion() string {
	if r.Group == "" {
		return r.Version
	}
	return r.Group + "/" + r.Version
}

// path returns where the resource is served.
func (r KubeResource) path() string {
	if r.Group == "" {
		return "/api/" + r.Version
	}
	return "/apis/" + r.Group + "/" + r.Version
}

// kubeObject is one version of an object. It never changes.
type kubeObject struct {
	namespace, name string
	labels          map[string]string
	version         uint64
	fields          map[string]any
	encoded         json.RawMessage
}

// kubeChange is one line of the history: was is nil for a creation, now for a
// deletion.
type kubeChange struct {
	version  uint64
	resource KubeResource
	was, now *kubeObject
	// gone is the deleted object with the deletion's version.
	gone *kubeObject
}

// kubeStore is the server's etcd and watch cache: objects, and a history of
// changes behind the oldest version that a watch may still begin at. The owner
// guards it.
type kubeStore struct {
	version uint64
	oldest  uint64
	objects map[KubeResource]map[string]*kubeObject // by namespace/name
	history []kubeChange
	changed chan struct{} // closed at the next change
}

func newKubeStore() *kubeStore {
	return &kubeStore{version: 1000, oldest: 1000, objects: map[KubeResource]map[string]*kubeObject{}, changed: make(chan struct{})}
}

// decodeObject reads an object's fields from anything that marshals to one.
func decodeObject(obj any) (map[string]any, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	return fields, nil
}

// metadata returns an object's metadata, which it makes where there is none.
func metadata(fields map[string]any) map[string]any {
	meta, _ := fields["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		fields["metadata"] = meta
	}
	return meta
}

func text(fields map[string]any, key string) string {
	s, _ := fields[key].(string)
	return s
}

// put creates or replaces an object. What the server owns is the server's: uid,
// creationTimestamp and resourceVersion. Nothing happens when nothing changes.
func (s *kubeStore) put(r KubeResource, fields map[string]any) *kubeObject {
	meta := maps.Clone(metadata(fields)) // it may be shared with the former version
	fields["metadata"] = meta
	key := text(meta, "namespace") + "/" + text(meta, "name")
	was := s.objects[r][key]
	fields["apiVersion"], fields["kind"] = r.apiVersion(), r.Kind
	if was != nil {
		before := metadata(was.fields)
		meta["uid"], meta["creationTimestamp"] = before["uid"], before["creationTimestamp"]
		meta["resourceVersion"] = before["resourceVersion"]
		if reflect.DeepEqual(fields, was.fields) {
			return was
		}
	} else {
		if text(meta, "uid") == "" {
			meta["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012d", s.version+1)
		}
		if text(meta, "creationTimestamp") == "" {
			meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
		}
	}
	s.version++
	now := s.freeze(fields)
	if s.objects[r] == nil {
		s.objects[r] = map[string]*kubeObject{}
	}
	s.objects[r][key] = now
	s.record(kubeChange{version: s.version, resource: r, was: was, now: now})
	return now
}

// freeze makes a version of an object out of fields, at the store's version.
func (s *kubeStore) freeze(fields map[string]any) *kubeObject {
	meta := metadata(fields)
	meta["resourceVersion"] = strconv.FormatUint(s.version, 10)
	o := &kubeObject{
		namespace: text(meta, "namespace"), name: text(meta, "name"),
		version: s.version, fields: fields, labels: map[string]string{},
	}
	if labels, ok := meta["labels"].(map[string]any); ok {
		for k, v := range labels {
			o.labels[k], _ = v.(string)
		}
	}
	o.encoded, _ = json.Marshal(fields) // it came out of JSON
	return o
}

// remove deletes an object; it returns nil when there is none.
func (s *kubeStore) remove(r KubeResource, key string) *kubeObject {
	was := s.objects[r][key]
	if was == nil {
		return nil
	}
	s.version++
	delete(s.objects[r], key)
	fields := maps.Clone(was.fields)
	fields["metadata"] = maps.Clone(metadata(was.fields))
	gone := s.freeze(fields)
	s.record(kubeChange{version: s.version, resource: r, was: was, gone: gone})
	return gone
}

func (s *kubeStore) record(c kubeChange) {
	s.history = append(s.history, c)
	close(s.changed)
	s.changed = make(chan struct{})
}

// compact forgets the history, so that a watch that began before it is expired.
func (s *kubeStore) compact() {
	s.history, s.oldest = nil, s.version
	close(s.changed)
	s.changed = make(chan struct{})
}

// since returns the changes behind a version; ok is false when they are no
// longer known.
func (s *kubeStore) since(version uint64) (changes []kubeChange, ok bool) {
	if version < s.oldest {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(s.history, version+1, func(c kubeChange, v uint64) int {
		return cmp.Compare(c.version, v)
	})
	return s.history[i:], true
}

// list returns the objects that match, ordered by key.
func (s *kubeStore) list(r KubeResource, match func(*kubeObject) bool) []*kubeObject {
	var out []*kubeObject
	for _, key := range slices.Sorted(maps.Keys(s.objects[r])) {
		if o := s.objects[r][key]; match(o) {
			out = append(out, o)
		}
	}
	return out
}

// mergePatch applies an RFC 7386 patch to a copy of fields.
func mergePatch(fields, patch map[string]any) map[string]any {
	out := maps.Clone(fields)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(out, k)
		case map[string]any:
			inner, _ := out[k].(map[string]any)
			out[k] = mergePatch(inner, v)
		default:
			out[k] = v
		}
	}
	return out
}

func (o *kubeObject) uid() types.UID { return types.UID(text(metadata(o.fields), "uid")) }
