package reports

import "time"

// Flight is a request, or one leg of it, on its way through a forwarder. Its zero
// value is nowhere and counts nothing; a nil Flight does nothing.
type Flight struct {
	t    *Tally
	pick Pick

	on     *entry // where it counts; nil nowhere
	at     key
	name   string // under which it counts
	load   Load
	began  time.Time
	first  bool
	whole  bool // the answer comes in one piece
	spread bool // the other pickers are told of the prompt
	closed bool
}

// Open returns a flight of pick, which is nowhere yet.
func (t *Tally) Open(pick Pick) *Flight {
	if t == nil {
		return nil
	}
	return &Flight{t: t, pick: pick}
}

// At says that the request is on its way to a worker: it counts there, as one that
// waits for its first token, and no more where it was. theirs says that it is where
// its picker wants it. It must not be called after Close.
func (f *Flight) At(now time.Time, worker string, rank int, theirs bool) {
	if f == nil {
		return
	}
	t := f.t
	t.mu.Lock()
	f.leave(now)
	f.at = key{worker, rank}
	f.on = t.entry(f.at)
	f.began, f.first = now, false
	f.load = Load{Requests: 1, Waiting: 1, PrefillTokens: f.pick.Miss, ActiveTokens: f.pick.Added}
	f.name = ""
	if theirs {
		f.name = f.pick.Picker
	}
	f.name = f.on.count(f.name, f.load, 1, now)
	if theirs && !f.spread && f.pick.Trail.N > 0 {
		f.spread = true
		t.sent = bounded(t.sent, Sent{Ref: f.pick.Ref, Worker: worker, Rank: rank, Trail: f.pick.Trail})
	}
	t.mu.Unlock()
	t.wake()
}

// Leaves says what prompt the request has, where its picker did not. It is to be called
// before At.
func (f *Flight) Leaves(tr Trail) {
	if f != nil {
		f.pick.Trail = tr
	}
}

// leave takes the request from where it counts, with mu held.
func (f *Flight) leave(now time.Time) {
	if f.on != nil {
		f.on.count(f.name, f.load, -1, now)
		f.on = nil
	}
}

// Weigh says what the request costs, where the picker did not. It is to be called
// before At.
func (f *Flight) Weigh(prompt, miss, added int) {
	if f != nil {
		f.pick.Prompt, f.pick.Miss, f.pick.Added = prompt, miss, added
	}
}

// Whole says that the answer will come in one piece: when its first token was there
// is not seen, and nothing is learned of the worker's speed.
func (f *Flight) Whole() {
	if f != nil {
		f.whole = true
	}
}

// First says that the worker has answered the first token. The first call since At
// counts.
func (f *Flight) First(now time.Time) {
	if f == nil {
		return
	}
	t := f.t
	t.mu.Lock()
	if f.on == nil || f.first || f.closed {
		t.mu.Unlock()
		return
	}
	f.first = true
	p := &f.pick
	f.on.count(f.name, f.load, -1, now)
	f.load = Load{Requests: 1, ContextTokens: p.Prompt, ActiveTokens: p.Added}
	f.on.count(f.name, f.load, 1, now)
	if !f.whole {
		f.on.computed(float64(p.Miss)*(1+(float64(p.Prompt)-float64(p.Miss)/2)/slower), f.began, now)
	}
	if f.name != "" && f.name == p.Picker && p.Pick != 0 {
		t.first = bounded(t.first, p.Ref)
	}
	t.mu.Unlock()
	t.wake()
}

// Moved says that the worker that was picked has failed, and how, and that the
// request goes on.
func (f *Flight) Moved(now time.Time, receipt string) {
	if f == nil {
		return
	}
	t := f.t
	t.mu.Lock()
	f.leave(now)
	f.tell(Done{Receipt: receipt, Moved: true, Prompt: -1, Cached: -1, Output: -1})
	t.mu.Unlock()
	t.wake()
}

// Leave ends a leg that has nothing to tell of its end.
func (f *Flight) Leave(now time.Time) {
	if f == nil {
		return
	}
	f.t.mu.Lock()
	defer f.t.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	f.leave(now)
	f.t.wake()
}

// Close ends the request. Its picker is told d, but for the reference, which the
// flight knows. Only the first call counts.
func (f *Flight) Close(now time.Time, d *Done) {
	if f == nil {
		return
	}
	t := f.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	f.leave(now)
	f.tell(*d)
	t.wake()
}

// tell queues d for the picker, if one waits for it, with mu held.
func (f *Flight) tell(d Done) {
	if d.Ref = f.pick.Ref; d.Pick != 0 {
		f.t.done = bounded(f.t.done, d)
	}
}

func bounded[T any](list []T, item T) []T {
	if len(list) >= maxNews {
		list = append(list[:0], list[1:]...)
	}
	return append(list, item)
}
