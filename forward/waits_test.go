package forward

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A timer goes from attempt to attempt as it runs, and each has its own time by it.
func TestALapseEndsTheAttemptThatHasIt(t *testing.T) {
	for name, limits := range map[string][]time.Duration{
		"alike":   {time.Minute, time.Minute, time.Minute},
		"shorter": {time.Hour, time.Minute, time.Second},
		"longer":  {time.Second, time.Minute, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ls lapses
				begun := func(limit time.Duration) (*attempt, *lapse) {
					a := &attempt{x: &exchange{start: time.Now()}}
					l := ls.lend(a, errWhy, limit)
					<-time.NewTimer(limit / 2).C
					l.run(time.Since(a.x.start))
					return a, l
				}
				for _, limit := range limits {
					done, l := begun(limit)
					<-time.NewTimer(limit / 4).C
					ls.take(l)
					late, l := begun(limit)
					began := time.Now()
					<-late.life.Done()
					if took := time.Since(began); !errors.Is(late.life.Err(), errWhy) || took != limit {
						t.Errorf("a limit of %v ends by %v after %v", limit, late.life.Err(), took)
					}
					ls.take(l)
					halted, l := begun(limit)
					l.halt()
					<-time.NewTimer(2 * limit).C
					for what, a := range map[string]*attempt{"given back": done, "halted": halted} {
						if a.life.Err() != nil {
							t.Errorf("limit %v: %s, and ends by %v", limit, what, a.life.Err())
						}
					}
					ls.take(l)
				}
			})
		})
	}
}

func TestThereIsNoLapseWithoutALimit(t *testing.T) {
	var ls lapses
	l := ls.lend(nil, errWhy, 0)
	if l != nil {
		t.Error("there is one")
	}
	l.run(0)
	l.halt()
	ls.take(l)
}
