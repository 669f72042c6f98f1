package lab

import (
	"time"

	"pointsman/breaker"
	"pointsman/kvindex"
	"pointsman/picker"
)

// arrive brings request i to a router.
func (m *sim) arrive(i int) {
	c := &m.calls[i]
	c.n, c.req, c.came = i, &m.t.Requests[i], m.now
	c.router, c.from = m.routers[0], 0
	if len(m.routers) > 1 {
		c.from = m.rand.IntN(len(m.routers))
		c.router = m.routers[c.from]
	}
	c.lists[0] = kvindex.Blocks{Size: m.t.BlockTokens, Hashes: c.req.hashes}
	c.ask = picker.Request{ID: "r", Model: modelName, Tokens: c.req.Prompt, Blocks: c.lists[:], Reason: "exact"}
	c.ticket.Units, c.ticket.Key = 1, modelName
	c.ticket.Places = func() int { return len(m.workers) }
	c.ticket.Pick = func(time.Time) error { return m.choose(c) }
	m.open++
	pass, waits, err := c.router.gate.Offer(&c.ticket)
	c.pass = pass
	switch {
	case err != nil:
		m.refused = err
		m.end(c, refused)
	case waits:
		c.queued = true
		if c.state == coming {
			c.state = parked
		}
		m.clock.add(event{at: m.now + int64(m.s.Admission.QueueWait), kind: waitOver, c: c})
	}
}

// choose picks a worker for c and sends it there.
func (m *sim) choose(c *call) error {
	d, err := c.router.pick(at(m.now), &c.ask)
	if err != nil {
		m.refused = err
		return err
	}
	c.decision = d
	c.state = running
	m.dispatch(c)
	return nil
}

// dispatch sends c to the worker that was picked.
func (m *sim) dispatch(c *call) {
	w := m.workers[m.indexOf(c.decision.Worker.ID)]
	c.w, c.sent = w, m.now
	c.try++
	c.seq = sequence{call: c, total: blocksFor(c.req.Prompt+c.req.Output, w.size)}
	if w.down {
		m.clock.add(event{at: m.now + int64(m.s.Notice), kind: endSeen, c: c, try: c.try})
		return
	}
	m.reports.sent(c)
	w.submit(&c.seq)
	if !w.busy {
		m.step(w)
	}
}

// indexOf returns the number of a worker: its ID says it.
func (m *sim) indexOf(id string) int {
	n := 0
	for _, d := range id[len("worker-"):] {
		if d == ':' {
			break
		}
		n = 10*n + int(d-'0')
	}
	return n
}

// heardFirst is c's first token, as its router learns of it.
func (m *sim) heardFirst(c *call, try int) {
	if try != c.try || c.state != running {
		return
	}
	c.decision.FirstToken(at(m.now))
	c.pass.FirstToken(at(m.now))
}

// heardEnd is the end of an attempt, as its router learns of it.
func (m *sim) heardEnd(c *call, try int) {
	if try != c.try || c.state != running {
		return
	}
	switch {
	case c.ended > 0:
		c.decision.Answered(c.req.Output)
		c.decision.Done(at(m.now), breaker.Success)
		c.pass.Release()
		m.end(c, served)
	case c.first > 0: // tokens have gone out: nothing is sent twice
		c.decision.Done(at(m.now), breaker.Stream)
		c.pass.Release()
		m.end(c, failed)
	default:
		c.decision.Done(at(m.now), breaker.Connect)
		m.again(c)
	}
}

// again tries another worker.
func (m *sim) again(c *call) {
	c.tried = append(c.tried, c.w.id(m))
	c.ask.Tried = c.tried
	if c.try < maxTries && len(c.tried) < len(m.workers) && m.choose(c) == nil {
		return
	}
	c.pass.Release()
	m.end(c, failed)
}

// waited ends c's wait, if it still waits.
func (m *sim) waited(c *call) {
	if c.state != parked {
		return
	}
	if err := c.router.gate.GiveUp(c.pass); err != nil {
		m.refused = err
	}
	m.end(c, refused) // also when its workers had gone while it waited
}

func (m *sim) end(c *call, s state) {
	c.state = s
	m.open--
	m.ended++
}
