package kubernetes

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"pointsman/fleet"
	"pointsman/internal/kube"
)

// table holds the Pods and who claims which worker_id. It does no I/O.
//
// Of several Pods that claim one id the fleet has one worker: the Pod whose
// worker is best off, so that on a host's network the new Pod's worker replaces
// that of a terminating one at the same address (D5); among equals the oldest
// Pod, so that a newcomer can't take an id away. Each replica decides alike.
type table struct {
	cfg    Config
	pods   map[types.UID]*pod
	claims map[string][]*pod // by worker_id; no empty slices
	counts map[state]int     // Pods in each state
}

func newTable(cfg Config) *table {
	return &table{cfg: cfg, pods: map[types.UID]*pod{}, claims: map[string][]*pod{}, counts: map[state]int{}}
}

// change is a Pod's former and present self; nil before its first and after its
// last.
type change struct{ was, now *pod }

// ids returns the worker_ids whose worker may be another one since the change.
func (c change) ids() []string {
	var out []string
	for _, id := range []string{c.was.id(), c.now.id()} {
		if id != "" && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// put takes note of a Pod's present state.
func (t *table) put(p *corev1.Pod) change {
	was := t.pods[kube.PodKey(p)]
	c := change{was: was, now: t.observe(p, was)}
	t.swap(c)
	return c
}

// remove forgets a Pod that is gone.
func (t *table) remove(p *corev1.Pod) change {
	c := change{was: t.pods[kube.PodKey(p)]}
	t.swap(c)
	return c
}

// replace makes all the only Pods there are.
func (t *table) replace(all []*corev1.Pod) []change {
	out := make([]change, 0, len(all))
	seen := make(map[types.UID]bool, len(all))
	for _, p := range all {
		seen[kube.PodKey(p)] = true
		out = append(out, t.put(p))
	}
	for uid, was := range t.pods {
		if !seen[uid] {
			c := change{was: was}
			t.swap(c)
			out = append(out, c)
		}
	}
	return out
}

func (t *table) swap(c change) {
	if c.was != nil {
		t.counts[c.was.state]--
	}
	if c.now != nil {
		t.counts[c.now.state]++
	}
	if id := c.was.id(); id != "" {
		rest := slices.DeleteFunc(t.claims[id], func(p *pod) bool { return p == c.was })
		t.claims[id] = rest
		if len(rest) == 0 {
			delete(t.claims, id)
		}
	}
	if c.now == nil {
		if c.was != nil {
			delete(t.pods, c.was.uid)
		}
		return
	}
	t.pods[c.now.uid] = c.now
	if id := c.now.id(); id != "" {
		t.claims[id] = append(t.claims[id], c.now)
	}
}

// worker returns the worker of an id, nil when no Pod claims it.
func (t *table) worker(id string) *fleet.Worker {
	if claims := t.claims[id]; len(claims) > 0 {
		return slices.MinFunc(claims, precedence).worker
	}
	return nil
}

func precedence(a, b *pod) int {
	return cmp.Or(
		cmp.Compare(a.worker.Status, b.worker.Status), // active, draining, dead
		a.created.Compare(b.created),
		cmp.Compare(a.uid, b.uid),
	)
}

// workers returns the whole fleet, ordered by ID.
func (t *table) workers() []*fleet.Worker {
	out := make([]*fleet.Worker, 0, len(t.claims))
	for _, id := range slices.Sorted(maps.Keys(t.claims)) {
		out = append(out, t.worker(id))
	}
	return out
}

// contested reports whether several Pods claim to be the active worker of an id.
func (t *table) contested(id string) bool {
	n := 0
	for _, p := range t.claims[id] {
		if p.worker.Status == fleet.Active {
			n++
		}
	}
	return n > 1
}
