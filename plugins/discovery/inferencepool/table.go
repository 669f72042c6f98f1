package inferencepool

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"pointsman/fleet"
)

// table holds the pool's Pods and who claims which worker ID. It does no I/O. Of
// several claims of one ID the one that is best off counts, of equals the oldest
// Pod's, so that each replica decides alike.
type table struct {
	members map[types.UID]*member
	claims  map[string][]claim // by worker ID; no empty slices
}

type claim struct {
	*member
	worker *fleet.Worker
}

func newTable() *table { return &table{members: map[types.UID]*member{}, claims: map[string][]claim{}} }

// put takes note of a Pod's present state and returns the IDs whose worker may be
// another one since.
func (t *table) put(m *member) []string {
	changed := t.remove(m.uid)
	t.members[m.uid] = m
	for _, w := range m.workers {
		t.claims[w.ID] = append(t.claims[w.ID], claim{m, w})
		if !slices.Contains(changed, w.ID) {
			changed = append(changed, w.ID)
		}
	}
	return changed
}

// remove forgets a Pod and returns the IDs that it claimed.
func (t *table) remove(uid types.UID) []string {
	was := t.members[uid]
	if was == nil {
		return nil
	}
	delete(t.members, uid)
	var ids []string
	for _, w := range was.workers {
		ids = append(ids, w.ID)
		rest := slices.DeleteFunc(t.claims[w.ID], func(c claim) bool { return c.member == was })
		if t.claims[w.ID] = rest; len(rest) == 0 {
			delete(t.claims, w.ID)
		}
	}
	return ids
}

// worker returns the worker of an ID with what is known of its model; nil when no
// Pod claims it.
func (t *table) worker(id string, models map[string]*answer) *fleet.Worker {
	claims := t.claims[id]
	if len(claims) == 0 {
		return nil
	}
	best := slices.MinFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.worker.Status, b.worker.Status), a.created.Compare(b.created), cmp.Compare(a.uid, b.uid))
	})
	if !best.bare {
		return best.worker
	}
	return models[id].apply(best.worker)
}

// contested reports whether several Pods claim to be the active worker of an ID.
func (t *table) contested(id string) bool {
	n := 0
	for _, c := range t.claims[id] {
		if c.worker.Status == fleet.Active {
			n++
		}
	}
	return n > 1
}

// fleet returns all workers, ordered by ID.
func (t *table) fleet(models map[string]*answer) []*fleet.Worker {
	out := make([]*fleet.Worker, 0, len(t.claims))
	for _, id := range slices.Sorted(maps.Keys(t.claims)) {
		out = append(out, t.worker(id, models))
	}
	return out
}
