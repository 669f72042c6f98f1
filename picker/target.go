package picker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/kvindex"
)

// target is what the picker remembers of one target across snapshots: a worker,
// or one rank of it. The picker's mutex guards it.
type target struct {
	circuit *breaker.Circuit
	host    *host
	in      kvindex.Instance
	size    int          // tokens per block: learned from events, else registered; 0 unknown
	mode    kvindex.Mode // as last read

	requests int    // in flight
	pending  int    // of these, without a first token
	turn     uint64 // number of the pick that last chose it
	waiting  int64  // tokens to prefill for the pending ones
	context  int64  // prompt tokens of the others
	coming   int64  // of the pending ones
	plain    int64  // tokens that requests without blocks stand for
	plains   int64  // these requests
	recent   float64
	external external // what others have in flight on it
	foretold foretold // what they have sent it of the prompt at hand
	led      ledger

	queue      float64 // te of the pending ones
	head, tail *leg    // the pending ones in order
	progress   int64   // when the queue last was empty, or got shorter at its head; Unix ns
	seen       evidence
	answers    answers
	scraped    Scraped
	asked      bool   // there is a scraped
	place      uint64 // on the ring
	past       int    // pending requests that are believed to be past their prefill
	pastTokens int64  // their prompts

	images      images
	key         string
	role        string // label of picks
	incarnation string
	picks       prometheus.Counter
	gone        bool // departed, with requests in flight
}

// active returns the tokens of distinct blocks in flight.
func (t *target) active() int64 { return t.led.tokens + t.plain }

// leg is the reservation of one request on one target.
type leg struct {
	t       *target
	in      kvindex.Instance
	node    *node // nil for a request without blocks
	over    bool  // its load has been given back
	settled bool  // and its permit
	told    bool  // the index was told: node's hashes are those of the target's block size
	permit  breaker.Permit
	risky   bool  // counted so by the host
	done    bool  // a prefill worker has answered well
	queued  bool  // among the pending ones of t
	mute    bool  // its first token tells nothing of its prefill: that comes with the last, or nobody knows the prompt
	past    bool  // mute, and believed to be past its prefill
	plain   int64 // tokens it stands for without blocks
	miss    int64 // tokens to prefill
	prompt  int64 // tokens of the prompt
	added   int64 // tokens that it added to those of distinct blocks in flight

	at         int64   // of the pick, Unix ns
	work       float64 // te to prefill
	next, prev *leg    // in the queue of t
}

// start takes the load of l, which stays where it is until it stops.
func (l *leg) start() {
	l.enqueue()
	t := l.t
	t.requests++
	t.host.requests++
	if l.risky = l.permit.Forced() || l.permit.Probe(); l.risky {
		t.host.risky++
	}
	t.pending++
	t.waiting += l.miss
	t.coming += l.prompt
	if l.node != nil {
		l.node.pending++
		return
	}
	t.plain += l.plain
	t.plains++
}

// seen turns l's load from waiting to decoding.
func (l *leg) seen(now time.Time) {
	l.dequeue(now, true)
	t := l.t
	t.pending--
	t.waiting -= l.miss
	t.coming -= l.prompt
	t.context += l.prompt
	if l.node != nil {
		l.node.pending--
		l.node.real = len(l.node.hashes)
	}
}

// stop gives back what start and seen took.
func (l *leg) stop(now time.Time, hadFirst bool, pool *nodePool) {
	l.dequeue(now, false)
	t := l.t
	t.requests--
	t.host.requests--
	l.safe()
	if hadFirst {
		t.context -= l.prompt
	} else {
		t.pending--
		t.waiting -= l.miss
		t.coming -= l.prompt
	}
	if l.node == nil {
		t.plain -= l.plain
		t.plains--
		return
	}
	if !hadFirst {
		l.node.pending--
	}
	t.led.drop(l.node, pool)
}

// safe counts l among the risky no more.
func (l *leg) safe() {
	if l.risky {
		l.risky = false
		l.t.host.risky--
	}
}

// maxImages is how many images are remembered for a target (Infera
// kv_event_aware.py: LRU of 256 for each route key).
const maxImages = 256

// images is the set of images that a target saw last. The zero value is empty.
type images struct {
	at    map[uint64]uint64 // when it was seen
	clock uint64
}

// missing returns how many of keys are not in the set.
func (m *images) missing(keys []uint64) (n int) {
	for _, k := range keys {
		if _, seen := m.at[k]; !seen {
			n++
		}
	}
	return n
}

// saw puts keys in the set, and the longest unseen ones out if it is full.
func (m *images) saw(keys []uint64) {
	if m.at == nil && len(keys) > 0 {
		m.at = make(map[uint64]uint64, maxImages+1)
	}
	for _, k := range keys {
		m.clock++
		m.at[k] = m.clock
		if len(m.at) > maxImages {
			m.forgetOldest()
		}
	}
}

func (m *images) forgetOldest() {
	oldest, key := m.clock+1, uint64(0)
	for k, at := range m.at {
		if at < oldest {
			oldest, key = at, k
		}
	}
	delete(m.at, key)
}

func (m *images) clear() { clear(m.at) }
