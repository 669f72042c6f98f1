package forward

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// comes is a body of which each poll takes its time and says whether more has come.
type comes struct {
	io.ReadCloser
	takes time.Duration
	more  int // polls that find something
	polls int
	full  bool // there is something at hand that has not been looked at
}

func (c *comes) Waits() bool { return !c.full }
func (c *comes) Wait()       {}
func (c *comes) Poll() bool {
	c.polls++
	<-time.NewTimer(c.takes).C // of the bubble
	return c.polls <= c.more
}

func TestEventsAreHeldForTheNextOnlyWhileTheseComeAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		body    comes
		written int64
		polls   int
		held    time.Duration
	}{
		"the first events":        {comes{more: 9}, 0, 0, 0},
		"nothing more":            {comes{takes: time.Microsecond}, 1, 1, time.Microsecond},
		"some more":               {comes{takes: time.Microsecond, more: 3}, 1, 4, 4 * time.Microsecond},
		"more without end":        {comes{takes: gatherTime / 4, more: 99}, 1, 4, gatherTime},
		"a poll of its own time":  {comes{takes: 5 * gatherTime, more: 99}, 1, 1, 5 * gatherTime},
		"something not looked at": {comes{more: 9, full: true}, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := &stream{x: &exchange{written: tc.written}, waits: &tc.body}
				for again := range 2 { // what was held for one piece is not for the next
					start := time.Now()
					tc.body.polls = 0
					for st.gather() {
					}
					if tc.body.polls != tc.polls || time.Since(start) != tc.held {
						t.Errorf("piece %d: held for %v, %d polls; want %v, %d", again, time.Since(start), tc.body.polls, tc.held, tc.polls)
					}
				}
			})
		})
	}
	if (&stream{x: &exchange{written: 1}}).gather() {
		t.Error("a body that cannot tell is waited for")
	}
}
