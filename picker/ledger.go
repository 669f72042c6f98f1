package picker

import "pointsman/kvindex"

// ledger counts the distinct prompt blocks in flight on one target.
//
// It keeps the prompts sorted by their hashes. A block's hash is chained, so two
// prompts are alike up to where their hashes differ, and a sorted list is a trie
// laid flat: what a prompt adds is what it does not share with its neighbours.
// That makes the count exact without a map of blocks.
type ledger struct {
	nodes  []*node
	blocks int64 // distinct blocks
	tokens int64 // the same in tokens
}

// node is one distinct prompt.
type node struct {
	hashes  []kvindex.Hash // own copy
	size    int            // tokens per block
	refs    int            // requests in flight with this prompt
	pending int            // those without a first token
	real    int            // leading blocks that are there, not only promised by a pending request
}

// seek returns where hs is or belongs, how many blocks it shares with its
// neighbours at most, and whether it is there.
func (l *ledger) seek(hs []kvindex.Hash) (at, shared int, found bool) {
	lo, hi := 0, len(l.nodes)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		have := l.nodes[mid].hashes
		k := commonPrefix(have, hs)
		if k == len(have) && k == len(hs) {
			return mid, k, true
		}
		// What hs shares with its neighbours it has compared on the way: the
		// last node on each side of a binary search is the neighbour.
		shared = max(shared, k)
		if k == len(have) || k < len(hs) && have[k] < hs[k] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, shared, false
}

// add counts one request with the prompt hs, which is not empty.
func (l *ledger) add(hs []kvindex.Hash, size int, pool *nodePool) *node {
	at, shared, found := l.seek(hs)
	if found {
		n := l.nodes[at]
		n.refs++
		return n
	}
	n := pool.get(hs, size)
	l.nodes = append(l.nodes, nil)
	copy(l.nodes[at+1:], l.nodes[at:])
	l.nodes[at] = n
	l.count(int64(len(hs)-shared), size)
	return n
}

// drop ends one request with n's prompt.
func (l *ledger) drop(n *node, pool *nodePool) {
	if n.refs--; n.refs > 0 {
		return
	}
	at, _, _ := l.seek(n.hashes)
	shared := 0
	if at > 0 {
		shared = commonPrefix(l.nodes[at-1].hashes, n.hashes)
	}
	if at+1 < len(l.nodes) {
		shared = max(shared, commonPrefix(l.nodes[at+1].hashes, n.hashes))
	}
	l.count(-int64(len(n.hashes)-shared), n.size)
	copy(l.nodes[at:], l.nodes[at+1:])
	l.nodes[len(l.nodes)-1] = nil
	l.nodes = l.nodes[:len(l.nodes)-1]
	pool.put(n)
}

func (l *ledger) count(blocks int64, size int) {
	l.blocks += blocks
	l.tokens += blocks * int64(size)
}

// reach is how many prompts on each side of a prompt are asked what is really
// there. It bounds the work; prompts that share most with it are the nearest.
const reach = 32

// real returns how many of the first depth blocks of hs, all of which the index
// believes to be there, are there for another reason than that a request which
// has no first token yet was sent there.
func (l *ledger) real(hs []kvindex.Hash, depth int) int {
	if depth == 0 || len(l.nodes) == 0 {
		return depth
	}
	at, _, _ := l.seek(hs)
	promised, there := 0, 0
	ask := func(n *node) bool {
		k := commonPrefix(n.hashes, hs)
		if n.pending > 0 {
			promised = max(promised, k)
		}
		there = max(there, min(k, n.real))
		return k > there // farther prompts share no more than this one
	}
	for i := at; i < len(l.nodes) && i < at+reach && ask(l.nodes[i]); i++ {
	}
	for i := at - 1; i >= 0 && i >= at-reach && ask(l.nodes[i]); i-- {
	}
	if depth > promised {
		return depth // more is there than was promised, and what is there is a prefix
	}
	return min(depth, there)
}

// commonPrefix returns how many leading hashes a and b share. Chained hashes
// that are equal at k are equal before k, so it bisects.
func commonPrefix(a, b []kvindex.Hash) int {
	n := min(len(a), len(b))
	if n == 0 || a[0] != b[0] {
		return 0
	}
	if a[n-1] == b[n-1] {
		return n
	}
	lo, hi := 0, n-1 // equal at lo, different at hi
	for hi-lo > 1 {
		mid := int(uint(lo+hi) >> 1)
		if a[mid] == b[mid] {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// nodePool keeps nodes for reuse.
type nodePool struct{ free []*node }

const (
	maxFreeNodes  = 4096
	maxFreeHashes = 1 << 14 // larger buffers go back to the garbage collector
)

func (p *nodePool) get(hs []kvindex.Hash, size int) *node {
	var n *node
	if last := len(p.free) - 1; last >= 0 {
		n, p.free = p.free[last], p.free[:last]
	} else {
		n = new(node)
	}
	*n = node{hashes: append(n.hashes[:0], hs...), size: size, refs: 1}
	return n
}

func (p *nodePool) put(n *node) {
	if len(p.free) < maxFreeNodes && cap(n.hashes) <= maxFreeHashes {
		p.free = append(p.free, n)
	}
}
