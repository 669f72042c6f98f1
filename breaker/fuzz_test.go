package breaker_test

import (
	"testing"
	"time"

	"pointsman/breaker"
)

// FuzzCircuit compares the circuit with a plain restatement of its rules over any
// sequence of requests, first tokens, ends and pauses.
func FuzzCircuit(f *testing.F) {
	f.Add([]byte{0, 21, 0, 21, 0, 21, 42, 0, 11})
	f.Add([]byte{0, 0, 0, 0, 21, 21, 21, 47, 0, 11, 20, 62, 0, 21})
	f.Add([]byte{0, 4, 26, 0, 4, 26, 0, 4, 26, 52, 0, 4, 26})
	f.Fuzz(func(t *testing.T, ops []byte) {
		c := breaker.NewSet(plain()).Circuit("w")
		m := newModel()
		type request struct {
			p breaker.Permit
			m modelPermit
		}
		var flying []request
		now := t0
		for i, op := range ops {
			arg := int(op) / 5
			k := 0
			if len(flying) > 0 {
				k = arg / 7 % len(flying)
			}
			switch op % 5 {
			case 0:
				var p breaker.Permit
				mp, want := m.acquire(now)
				got := true
				if arg%2 == 1 && !want {
					p, mp, want = c.Force(now), modelPermit{epoch: m.epoch, special: true}, true
				} else {
					p, got = c.Acquire(now)
				}
				if got != want {
					t.Fatalf("op %d: Acquire = %v, want %v", i, got, want)
				}
				if got {
					flying = append(flying, request{p, mp})
				}
			case 1:
				if len(flying) > 0 {
					o := breaker.Outcome(arg % 7)
					flying[k].p.Done(now, o)
					m.done(flying[k].m, now, o)
					flying = append(flying[:k], flying[k+1:]...)
				}
			case 2:
				now = now.Add(time.Duration(arg*arg) * 20 * time.Millisecond)
			case 3:
				if len(flying) > 0 {
					flying[k].p.Answered()
					m.answered(flying[k].m)
				}
			case 4:
				if len(flying) > 0 {
					flying[k].p.FirstToken(now)
					m.first(&flying[k].m)
				}
			}
			if got, want := c.State(now), m.state(now); got != want {
				t.Fatalf("op %d: %v, want %v", i, got, want)
			}
			if got, want := c.Busy(now), now.Before(m.busy); got != want {
				t.Fatalf("op %d: busy %v, want %v", i, got, want)
			}
		}
	})
}

// model states the rules with no thought of cost: default tuning, no jitter.
type model struct {
	open            bool
	epoch           int
	row             map[breaker.Outcome]int
	until, probedAt time.Time
	busy            time.Time
	cooldown        time.Duration
	probe, probes   int
}

type modelPermit struct {
	epoch, probe int
	special      bool // sent although the circuit was not closed
}

func newModel() *model {
	return &model{cooldown: 5 * time.Second, row: map[breaker.Outcome]int{}}
}

func (m *model) state(now time.Time) breaker.State {
	switch {
	case !m.open:
		return breaker.Closed
	case now.Before(m.until):
		return breaker.Open
	}
	return breaker.HalfOpen
}

func (m *model) acquire(now time.Time) (modelPermit, bool) {
	switch {
	case !m.open:
		return modelPermit{epoch: m.epoch}, true
	case now.Before(m.until), m.probe != 0 && now.Sub(m.probedAt) < time.Minute:
		return modelPermit{}, false
	}
	m.probes++
	m.probe, m.probedAt = m.probes, now
	return modelPermit{epoch: m.epoch, probe: m.probe, special: true}, true
}

func (m *model) close() {
	m.open, m.probe, m.cooldown = false, 0, 5*time.Second
	m.epoch++
	clear(m.row)
}

func (m *model) trip(now time.Time) {
	m.open, m.probe, m.until = true, 0, now.Add(m.cooldown)
	m.epoch++
	clear(m.row)
}

func (m *model) answered(p modelPermit) {
	if p.epoch == m.epoch && !m.open {
		m.row[breaker.Connect], m.row[breaker.Origin] = 0, 0
	}
}

func (m *model) first(p *modelPermit) {
	switch {
	case p.epoch != m.epoch:
	case p.special && m.open:
		m.close()
		*p = modelPermit{epoch: m.epoch}
	case !m.open:
		m.answered(*p)
		m.row[breaker.Transfer] = 0
	}
}

func (m *model) done(p modelPermit, now time.Time, o breaker.Outcome) {
	if o == breaker.Busy {
		m.busy = now.Add(time.Second)
	}
	if p.epoch != m.epoch {
		return
	}
	if !m.open {
		switch {
		case o == breaker.Success:
			clear(m.row)
		case o.Fault():
			m.row[o]++
			if o != breaker.Connect {
				m.row[breaker.Connect] = 0
			}
			if o == breaker.Stream {
				m.row[breaker.Origin] = 0
			}
			if m.row[o] == 3 {
				m.trip(now)
			}
		}
		return
	}
	switch {
	case o == breaker.Success:
		m.close()
	case p.probe == 0 || p.probe != m.probe:
	case o.Fault():
		m.cooldown = min(2*m.cooldown, time.Minute)
		m.trip(now)
	default:
		m.probe = 0
	}
}
