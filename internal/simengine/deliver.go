package simengine

import (
	"context"
	"encoding/json"
	"slices"
)

func tokensSent(j *job) int {
	n := 0
	for _, c := range j.choices {
		n += c.sent
	}
	return n
}

// wait returns when every choice is finished.
func wait(ctx context.Context, j *job) error {
	for {
		if !slices.ContainsFunc(j.choices, func(c *choice) bool { return !c.seq.finished.Load() }) {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-j.choices[0].seq.notify:
		}
	}
}

// unary writes a whole answer.
func unary(p *reply, v any, j *job) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := p.unary(b); err != nil {
		return err
	}
	for _, c := range j.choices {
		c.sent = len(c.pieces)
	}
	return nil
}

// stream writes tokens as they are produced.
func stream(p *reply, j *job) error {
	// The head goes out with the first token, as an engine's does: a failure
	// before it can still be a status.
	if err := firstToken(p, j); err != nil {
		return err
	}
	if err := p.startStream(); err != nil {
		return err
	}
	var buf []byte
	for {
		all, err := writeReady(p, j, &buf)
		p.entry.update(func(r *Receipt) { r.EventsSent, r.TokensSent = p.events, tokensSent(j) })
		if err != nil {
			return err
		}
		if all {
			break
		}
		if err := p.flush(); err != nil {
			return err
		}
		select {
		case <-p.ctx.Done():
			return p.ctx.Err()
		case <-j.choices[0].seq.notify:
		}
	}
	if b := p.frame.usage(buf[:0], j.usage()); len(b) > 0 {
		if err := p.event(0, b); err != nil {
			return err
		}
	}
	return p.finishStream()
}

// firstToken waits for the first output token of any choice.
func firstToken(p *reply, j *job) error {
	for !slices.ContainsFunc(j.choices, func(c *choice) bool { return c.seq.produced.Load() > 0 }) {
		select {
		case <-p.ctx.Done():
			return p.ctx.Err()
		case <-j.choices[0].seq.notify:
		}
	}
	return nil
}

// writeReady writes every token produced and not yet sent, and reports whether
// all choices are complete.
func writeReady(p *reply, j *job, buf *[]byte) (bool, error) {
	all := true
	for i, c := range j.choices {
		ready := int(c.seq.produced.Load())
		if err := writeChoice(p, i, c, ready, buf); err != nil {
			return false, err
		}
		all = all && c.closed
	}
	return all, nil
}

// writeChoice writes choice i up to its ready-th token.
func writeChoice(p *reply, i int, c *choice, ready int, buf *[]byte) error {
	if ready == 0 || c.closed {
		return nil
	}
	send := func(b []byte) error {
		*buf = b
		if len(b) == 0 {
			return nil
		}
		return p.event(i, b)
	}
	if !c.opened {
		c.opened = true
		if err := send(p.frame.open((*buf)[:0], i, usageOf(c))); err != nil {
			return err
		}
	}
	for c.sent < ready {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		text := c.pieces[c.sent]
		c.sent++ // before the write: a cut after this event has sent it
		if text == "" {
			continue
		}
		if err := send(p.frame.delta((*buf)[:0], i, text)); err != nil {
			return err
		}
	}
	if c.sent < len(c.pieces) {
		return nil
	}
	c.closed = true
	return send(p.frame.finish((*buf)[:0], i, c.reason, usageOf(c)))
}
