package template

import (
	"sync"
	"time"
)

// run is the state of one rendering.
type run struct {
	t           *Template
	out         []byte // the prompt; captures are taken off its end
	base        int    // where this rendering's output begins
	stack       []value
	frame       *frame
	ctx         []value // render variables, by the template's names
	scratch     []byte  // for one string at a time
	arena       []byte  // of decoded strings, see room
	line        int
	final       string // with continue_final_message: the message to continue
	appendFinal bool
	now         time.Time

	steps, mem, maxOut int
	fixedSteps         bool // the caller set the steps: input adds none
	folding            bool // evaluates constants for the parser, see fold
	depth, maxDepth    int
	small              int // work not yet a step

	free    []*args
	slab    []value
	entries []entry
}

// frame holds the variables of one activation of a template, macro or block.
type frame struct {
	vars   []value
	parent *frame
}

// pool keeps states between renderings. It holds no request data: release clears.
type pool struct{ p sync.Pool }

func (p *pool) take() *run {
	if r, ok := p.p.Get().(*run); ok {
		return r
	}
	return &run{}
}

// release forgets everything the rendering touched and keeps the memory.
func (p *pool) release(r *run) {
	clear(r.stack[:cap(r.stack)])
	clear(r.slab)
	clear(r.entries)
	keep := run{stack: r.stack[:0], slab: r.slab[:0], entries: r.entries[:0], ctx: r.ctx[:0], scratch: r.scratch[:0], arena: r.arena[:0], free: r.free}
	clear(r.ctx[:cap(r.ctx)])
	if cap(keep.stack) > retainedValues {
		keep.stack = nil
	}
	if cap(keep.arena) > retainedBytes {
		keep.arena = nil
	}
	if cap(keep.slab) > retainedValues {
		keep.slab = nil
	}
	if cap(keep.entries) > retainedValues {
		keep.entries = nil
	}
	*r = keep
	p.p.Put(r)
}

// values returns n fresh values from the slab.
func (r *run) values(n int) []value {
	r.alloc(n * valueSize)
	if cap(r.slab)-len(r.slab) < n {
		r.slab = make([]value, 0, max(n, min(2*cap(r.slab), retainedValues), slabValues))
	}
	at := len(r.slab)
	r.slab = r.slab[:at+n]
	return r.slab[at : at+n : at+n]
}

// newEntries returns an empty slice for n dict entries from the slab.
func (r *run) newEntries(n int) []entry {
	r.alloc(n * 2 * valueSize)
	if cap(r.entries)-len(r.entries) < n {
		r.entries = make([]entry, 0, max(n, min(2*cap(r.entries), retainedValues), slabEntries))
	}
	at := len(r.entries)
	r.entries = r.entries[:at+n]
	return r.entries[at : at : at+n]
}

func (r *run) list(items []value) value {
	r.alloc(valueSize)
	return listOf(items)
}

func (r *run) tuple(items []value) value {
	r.alloc(valueSize)
	return tupleOf(items)
}

func (r *run) newDict(n int) *dict {
	r.alloc(valueSize)
	return &dict{entries: r.newEntries(n)}
}

// write appends to the output.
func (r *run) write(s string) {
	if len(r.out)-r.base+len(s) > r.maxOut {
		r.limit("the prompt is too long")
	}
	r.work(len(s))
	r.out = append(r.out, s...)
}

// captured takes what was written since mark off the output.
func (r *run) captured(mark int) value {
	n := len(r.out) - mark
	r.alloc(n)
	s := string(r.out[mark:])
	r.out = r.out[:mark]
	return strValue(s)
}

func (r *run) at(ref slotRef) *value {
	f := r.frame
	for i := ref.up; i > 0; i-- {
		f = f.parent
	}
	return &f.vars[ref.idx]
}

// open starts a scope's variables.
func (r *run) open(s *scopeInit) {
	for i := range s.ops {
		op := &s.ops[i]
		switch op.how {
		case initAlias:
			r.frame.vars[op.slot] = *r.at(op.src)
		case initResolve:
			r.frame.vars[op.slot] = r.ctx[op.name]
		default:
			r.frame.vars[op.slot] = value{}
		}
	}
}

// push makes a frame for an activation of proc, inside of parent.
func (r *run) push(proc *procInfo, parent *frame) (old *frame) {
	r.enter()
	old = r.frame
	r.alloc(valueSize)
	r.frame = &frame{vars: r.values(int(proc.slots)), parent: parent}
	return old
}

func (r *run) pop(old *frame) {
	r.frame = old
	r.leave()
}

func (r *run) body(body []stmt) flow {
	for _, st := range body {
		if f := st.exec(r); f != flowNext {
			return f
		}
	}
	return flowNext
}
