package lab

import "time"

// epoch is the virtual time at which every run starts. Any would do.
const epoch = 1_800_000_000 * int64(time.Second)

// at is virtual time as what is driven takes it.
func at(ns int64) time.Time { return time.Unix(0, ns) }

// kind is what happens in an event.
type kind uint8

const (
	stepEnds   kind = iota // w's step is over
	eventsCome             // a batch of KV events reaches the routers
	firstSeen              // c's router hears of its first token
	endSeen                // c's router hears of its end
	waitOver               // c has waited for as long as it may
	reportDue              // w publishes its load
	scrapeDue              // w's engine is asked
	sampleDue              // queues are looked at
	workerDies
	workerReturns
	workerSlows
)

// event is something that happens at a time. Of events of one time the one that was
// added first happens first.
type event struct {
	at    int64
	order uint64
	kind  kind
	try   int // of workers: their incarnation; of calls: their attempt
	w     *worker
	c     *call
	b     *batch
}

// clock is the events to come, the next one first.
type clock struct {
	heap  []event
	order uint64
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.order < o.order
}

// add puts e among the events to come.
func (k *clock) add(e event) {
	k.order++
	e.order = k.order
	k.heap = append(k.heap, e)
	h := k.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// next returns the time of the next event; ok is false when there is none.
func (k *clock) next() (at int64, ok bool) {
	if len(k.heap) == 0 {
		return 0, false
	}
	return k.heap[0].at, true
}

// take removes the next event.
func (k *clock) take() event {
	h := k.heap
	e := h[0]
	last := len(h) - 1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h[down+1].before(&h[down]) {
			down++
		}
		if !h[down].before(&h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	k.heap = h
	return e
}
