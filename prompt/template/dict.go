package template

// dict is Python's dict: in insertion order, read only once built.
type dict struct {
	entries []entry
	index   map[string]int32 // of string keys; nil while small
}

type entry struct{ key, val value }

func (d *dict) len() int { return len(d.entries) }

// str returns the value of a string key.
func (d *dict) str(key string) (value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].val, true
	}
	return value{}, false
}

func (d *dict) find(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return int(i)
		}
		return -1
	}
	for i := range d.entries {
		if e := &d.entries[i]; e.key.k == kStr && e.key.s == key {
			return i
		}
	}
	return -1
}

// get returns the value of any hashable key; an unhashable one is a TypeError.
func (d *dict) get(r *run, key value) (value, bool) {
	if key.k == kStr {
		return d.str(key.s)
	}
	r.hashable(key)
	r.work(len(d.entries) * 8)
	for i := range d.entries {
		if e := &d.entries[i]; e.key.k != kStr && r.equal(e.key, key) {
			return e.val, true
		}
	}
	return value{}, false
}

// set adds or replaces; a replaced key keeps its place, as in Python.
func (d *dict) set(r *run, key, val value) {
	if key.k == kStr {
		if i := d.find(key.s); i >= 0 {
			d.entries[i].val = val
			return
		}
	} else {
		r.hashable(key)
		r.work(len(d.entries) * 8)
		for i := range d.entries {
			if e := &d.entries[i]; e.key.k != kStr && r.equal(e.key, key) {
				e.val = val
				return
			}
		}
	}
	r.alloc(2 * valueSize)
	d.entries = append(d.entries, entry{key, val})
	d.noteLast(r)
}

// noteLast keeps the hash index when the dict is large.
func (d *dict) noteLast(r *run) {
	n := len(d.entries)
	switch {
	case d.index != nil:
		if k := d.entries[n-1].key; k.k == kStr {
			d.index[k.s] = int32(n - 1) //nolint:gosec // bounded by memory
		}
	case n > dictIndexed:
		r.alloc(n * 64)
		d.index = make(map[string]int32, 2*n)
		for i := range d.entries {
			if k := d.entries[i].key; k.k == kStr {
				d.index[k.s] = int32(i)
			}
		}
	default:
		return
	}
	if d.index != nil {
		r.work(workUnit / 8)
	}
}

// hashable fails as Python's hash() does on lists and dicts.
func (r *run) hashable(v value) {
	switch v.k {
	case kView:
		if viewPart(v.n) != viewValues {
			r.typeError("unhashable type: '%s'", typeName(v))
		}
	case kList, kDict:
		r.typeError("unhashable type: '%s'", typeName(v))
	case kTuple:
		r.enter()
		for _, x := range v.items() {
			r.hashable(x)
		}
		r.leave()
	default:
	}
}

// viewPart is which view of a dict a kView is.
type viewPart int64

const (
	viewKeys viewPart = iota
	viewValues
	viewItems
)

func viewOf(d *dict, part viewPart) value { return value{k: kView, n: int64(part), o: d} }

func viewName(v value) string {
	switch viewPart(v.n) {
	case viewKeys:
		return "dict_keys"
	case viewValues:
		return "dict_values"
	default:
		return "dict_items"
	}
}

// viewAt is item i of a view.
func (r *run) viewAt(v value, i int) value {
	e := &v.dict().entries[i]
	switch viewPart(v.n) {
	case viewKeys:
		return e.key
	case viewValues:
		return e.val
	default:
		pair := r.values(2)
		pair[0], pair[1] = e.key, e.val
		return r.tuple(pair)
	}
}
