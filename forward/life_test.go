package forward

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

var errWhy = errors.New("why")

func TestALifeIsAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := new(life)
		if l.Err() != nil || context.Cause(l) != nil {
			t.Fatalf("it begins with %v", l.Err())
		}
		child, cancel := context.WithCancelCause(l)
		defer cancel(nil)
		other, cancelOther := context.WithCancelCause(l)
		var calls atomic.Int32
		context.AfterFunc(l, func() { calls.Add(1) })
		stop := context.AfterFunc(l, func() { t.Error("a call that was stopped") })
		if !stop() || stop() {
			t.Error("stopped not once")
		}
		cancelOther(errors.New("its own"))
		l.end(errWhy)
		l.end(errors.New("late"))
		for name, ctx := range map[string]context.Context{"itself": l, "a child": child} {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), errWhy) {
				t.Errorf("%s ends by %v", name, context.Cause(ctx))
			}
		}
		if errors.Is(context.Cause(other), errWhy) {
			t.Error("a child that had ended was ended again")
		}
		context.AfterFunc(l, func() { calls.Add(1) }) // behind the end: at once
		late, cancelLate := context.WithCancel(l)
		defer cancelLate()
		synctest.Wait()
		if calls.Load() != 2 || late.Err() == nil {
			t.Errorf("%d calls, a child made behind the end: %v", calls.Load(), late.Err())
		}
	})
}

func TestEndingWithoutACauseIsACancelation(t *testing.T) {
	l := new(life)
	l.end(nil)
	if !errors.Is(context.Cause(l), context.Canceled) {
		t.Error(context.Cause(l))
	}
}

func TestALifeFollowsAnother(t *testing.T) {
	std, cancel := context.WithCancelCause(t.Context())
	own := new(life)
	for parent, end := range map[context.Context]func(error){own: own.end, std: cancel} {
		t.Run(fmt.Sprintf("%T", parent), func(t *testing.T) {
			var follows, stopped, late life
			var by, byStopped, byLate Ending
			follows.follow(parent, &by)
			stopped.follow(parent, &byStopped)
			if !byStopped.Stop() || byStopped.Stop() {
				t.Error("stopped not once")
			}
			end(errWhy)
			<-follows.Done()
			late.follow(parent, &byLate)
			<-late.Done()
			if !errors.Is(follows.Err(), errWhy) || !errors.Is(late.Err(), errWhy) || stopped.Err() != nil {
				t.Errorf("it follows with %v, late with %v, stopped with %v", follows.Err(), late.Err(), stopped.Err())
			}
			if by.Stop() || byLate.Stop() {
				t.Error("stopped too late")
			}
		})
	}
}

func TestEndingsStopInAnyOrder(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		synctest.Test(t, func(t *testing.T) {
			l := new(life)
			var endings [4]Ending
			called := make([]bool, len(endings))
			for i := range endings {
				endings[i].Await(l, func() { called[i] = true })
			}
			for n, i := range order[:2] {
				if !endings[i].Stop() || endings[i].Stop() {
					t.Errorf("%v: stop %d", order, n)
				}
			}
			l.end(errWhy)
			synctest.Wait()
			for i := range endings {
				if want := i == order[2] || i == 3; called[i] != want || endings[i].Stop() {
					t.Errorf("%v: %d called: %v", order, i, called[i])
				}
			}
		})
	}
}
