package admission

import "slices"

// queue holds the waiting requests: the highest priority first, and within one
// the oldest first.
type queue struct {
	bands  []*band        // by falling priority, none empty
	keys   map[string]int // requests by key
	parked map[string]int // those of laneWorker
	n      int
	bytes  int64
	lanes  [3]int
	spare  *band
}

// band is the requests of one priority, by rising seq.
type band struct {
	priority    int
	first, last *Request
}

// add puts r in its place.
func (q *queue) add(r *Request) {
	b := q.band(r.Priority)
	at := b.last // whom it comes after
	if b.first != nil && r.seq < b.first.seq {
		at = nil
	}
	for at != nil && at.seq > r.seq {
		at = at.prev
	}
	r.band, r.prev = b, at
	if at != nil {
		r.next, at.next = at.next, r
	} else {
		r.next, b.first = b.first, r
	}
	if r.next != nil {
		r.next.prev = r
	} else {
		b.last = r
	}
	q.n++
	q.bytes += r.Bytes
	q.lanes[r.lane]++
	if q.keys == nil {
		q.keys, q.parked = map[string]int{}, map[string]int{}
	}
	q.keys[r.Key]++
	if r.lane == laneWorker {
		q.parked[r.Key]++
	}
	if r.slot != nil {
		r.slot.queued++
	}
}

// band returns the band of a priority.
func (q *queue) band(priority int) *band {
	at := 0
	for at < len(q.bands) && q.bands[at].priority > priority {
		at++
	}
	if at < len(q.bands) && q.bands[at].priority == priority {
		return q.bands[at]
	}
	b := q.spare
	if q.spare = nil; b == nil {
		b = new(band)
	}
	b.priority = priority
	q.bands = slices.Insert(q.bands, at, b)
	return b
}

// remove takes r out.
func (q *queue) remove(r *Request) {
	b := r.band
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		b.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		b.last = r.prev
	}
	if b.first == nil {
		q.drop(b)
	}
	r.band, r.prev, r.next = nil, nil, nil
	q.n--
	q.bytes -= r.Bytes
	q.lanes[r.lane]--
	if q.keys[r.Key]--; q.keys[r.Key] <= 0 {
		delete(q.keys, r.Key)
	}
	if r.lane == laneWorker {
		if q.parked[r.Key]--; q.parked[r.Key] <= 0 {
			delete(q.parked, r.Key)
		}
	}
	if r.slot != nil {
		r.slot.queued--
	}
}

func (q *queue) drop(b *band) {
	if i := slices.Index(q.bands, b); i >= 0 {
		q.bands = slices.Delete(q.bands, i, i+1)
		q.spare = b
	}
}

// first returns who is next; nil for nobody.
func (q *queue) first() *Request {
	if len(q.bands) == 0 {
		return nil
	}
	return q.bands[0].first
}

// after returns who comes after r.
func (q *queue) after(r *Request) *Request {
	if r.next != nil {
		return r.next
	}
	for i, b := range q.bands {
		if b == r.band && i+1 < len(q.bands) {
			return q.bands[i+1].first
		}
	}
	return nil
}

// sheddable returns the youngest of the lowest priority, if that is below both 0
// and the given one, and counts in the same lane; nil for none.
func (q *queue) sheddable(below int, l lane) *Request {
	for _, b := range slices.Backward(q.bands) {
		if b.priority >= min(0, below) {
			return nil
		}
		for r := b.last; r != nil; r = r.prev {
			if r.lane == l {
				return r
			}
		}
	}
	return nil
}
