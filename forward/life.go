package forward

import (
	"context"
	"sync"
	"time"
)

// life is the context of a request or of an attempt. It is part of what it is the
// context of, and needs no memory but a channel for those who ask for one: two
// contexts of the standard library and the watch on them cost a request as many
// allocations as all else in this package. It has no deadline and no values.
//
// Its Err is its cause, as what ended it: [context.Cause] finds it so, and contexts
// that are made of it have it. The zero value goes on until it is ended. It must not
// be copied.
type life struct {
	mu    sync.Mutex
	done  chan struct{} // nil until somebody asks for it
	cause error         // nil while it goes on
	told  *Ending       // a list, through Ending.next, of what is told of the end
}

// Deadline implements context.Context: there is none.
func (l *life) Deadline() (deadline time.Time, ok bool) { return }

// Value implements context.Context: there are none.
func (l *life) Value(any) any { return nil }

// Done implements context.Context.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.cause != nil {
			close(l.done)
		}
	}
	return l.done
}

// Err implements context.Context, but for what it says: why l was ended, nil while it
// goes on.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// AfterFunc is what package context looks for in contexts that are not its own.
func (l *life) AfterFunc(f func()) (stop func() bool) {
	e := &Ending{call: f}
	l.tell(e)
	return e.Stop
}

// end ends l, and what has been made of it, with cause; nil is [context.Canceled]. Only
// the first time counts.
func (l *life) end(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return
	}
	if l.cause = cause; l.done != nil {
		close(l.done)
	}
	for e := l.told; e != nil; {
		next := e.next
		e.next, e.before = nil, nil
		e.tell(cause)
		e = next
	}
	l.told = nil
}

// follow makes l end when parent does, with its cause, until by is stopped.
func (l *life) follow(parent context.Context, by *Ending) {
	if p, ok := parent.(*life); ok {
		by.child = l
		p.tell(by)
		return
	}
	by.stop = context.AfterFunc(parent, func() { l.end(context.Cause(parent)) })
}

// tell lists e, or tells it at once.
func (l *life) tell(e *Ending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		e.tell(l.cause)
		return
	}
	e.of = l
	if e.next = l.told; e.next != nil {
		e.next.before = e
	}
	l.told = e
}

// Ending is a call that is made when a context is done. It is [context.AfterFunc] for a
// caller that has a place for it: for the contexts that [Transport.Do] gets it needs no
// memory. The zero value is ready for one use. It must not be copied.
type Ending struct {
	call  func()
	child *life       // to be ended, instead of a call
	stop  func() bool // of another kind of context

	of           *life // where it is listed, or was
	next, before *Ending
}

// Await makes f be called, on a goroutine of its own, when ctx is done.
func (e *Ending) Await(ctx context.Context, f func()) {
	if l, ok := ctx.(*life); ok {
		e.call = f
		l.tell(e)
		return
	}
	e.stop = context.AfterFunc(ctx, f)
}

// Stop ends the wait. It reports false when that was too late: the call is being made,
// or has been.
func (e *Ending) Stop() bool {
	if e.stop != nil {
		return e.stop()
	}
	l := e.of
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil || !e.listed(l) {
		return false
	}
	if e.before != nil {
		e.before.next = e.next
	} else {
		l.told = e.next
	}
	if e.next != nil {
		e.next.before = e.before
	}
	e.next, e.before = nil, nil
	return true
}

// listed reports whether e has not been stopped, with l.mu held.
func (e *Ending) listed(l *life) bool { return e.before != nil || l.told == e }

// tell is told the cause.
func (e *Ending) tell(cause error) {
	if e.child != nil {
		e.child.end(cause)
		return
	}
	go e.call()
}
