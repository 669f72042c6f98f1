package remote

import (
	"sync"
	"time"

	"pointsman/prompt"
)

// circuits leave alone what workers fail to tokenize. A worker's own circuit is
// another matter: it may serve well and have no /tokenize.
type circuits struct {
	failures int
	cooldown time.Duration

	mu    sync.Mutex
	known map[subject]*circuit
}

// subject is what a circuit is for: an engine may tokenize texts and not chats.
type subject struct {
	model string
	kind  prompt.Kind
}

type circuit struct {
	row   int       // failures in a row
	ever  bool      // has succeeded
	until time.Time // left alone before
}

func newCircuits(failures int, cooldown time.Duration) *circuits {
	return &circuits{failures: failures, cooldown: cooldown, known: map[subject]*circuit{}}
}

func (c *circuits) of(s subject) *circuit {
	m := c.known[s]
	if m == nil {
		m = &circuit{}
		c.known[s] = m
	}
	return m
}

// allow reports whether s may be asked for. After a cooldown it lets one request
// through; the others wait for its outcome for another cooldown.
func (c *circuits) allow(s subject, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(s)
	if m.row < c.failures {
		return true
	}
	if now.Before(m.until) {
		return false
	}
	m.until = now.Add(c.cooldown)
	return true
}

// success forgets the failures; recovered is true if s was left alone.
func (c *circuits) success(s subject) (recovered bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(s)
	recovered = m.row >= c.failures
	m.row, m.ever = 0, true
	return recovered
}

// failure counts one; opened is true when it is the one that makes s be left
// alone.
func (c *circuits) failure(s subject, now time.Time) (opened bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.of(s)
	if m.row++; m.row >= c.failures {
		m.until = now.Add(c.cooldown)
	}
	return m.row == c.failures
}

// refused counts an answer that finds fault with the request. Of a subject that
// has been tokenized before it is news about that request only; else the engine
// may not know such requests at all, and it is a failure.
func (c *circuits) refused(s subject, now time.Time) (opened bool) {
	c.mu.Lock()
	ever := c.of(s).ever
	c.mu.Unlock()
	return !ever && c.failure(s, now)
}

// keep forgets the models for which has is false.
func (c *circuits) keep(has func(model string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.known {
		if !has(s.model) {
			delete(c.known, s)
		}
	}
}
