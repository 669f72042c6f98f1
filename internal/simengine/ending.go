package simengine

import (
	"context"
	"log/slog"
	"time"
)

// Drain ends the engine as Infera's launcher does on SIGTERM: it stops the
// heartbeat, revokes the lease or clears the annotation, goes on serving until nothing is in flight or
// Config.DrainTimeout has passed or ctx is done, and stops. It returns when
// everything has ended.
func (e *Engine) Drain(ctx context.Context) error {
	err := e.deregister(ctx)
	wait, cancel := context.WithTimeout(ctx, e.cfg.DrainTimeout)
	defer cancel()
	if e.nats != nil {
		e.nats.drain(wait)
	}
	if e.inflight.wait(wait) {
		e.flush(wait)
	} else {
		e.log.LogAttrs(ctx, slog.LevelWarn, "drain timed out", slog.Int("in_flight", e.inflight.count()))
	}
	e.end() //nolint:contextcheck // ending does not depend on ctx
	return err
}

// flush waits for the ends of answers whose handlers have returned: net/http
// writes them after that. A connection that never sent a request may cost the
// whole second.
func (e *Engine) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, s := range e.servers {
		_ = s.Shutdown(ctx) // what is left then is closed with the engine
	}
}

// Close takes the record out and ends the engine without waiting for requests.
func (e *Engine) Close() error {
	err := e.deregister(context.WithoutCancel(e.life))
	e.end()
	return err
}

// Kill ends the engine as SIGKILL would: connections break, the record stays
// until its lease expires, or as long as its Pod.
func (e *Engine) Kill() { e.end() }

// deregister stops the heartbeat, then takes the record out.
func (e *Engine) deregister(ctx context.Context) error {
	e.regStop()
	<-e.regDone
	if e.reg == nil {
		return nil
	}
	select {
	case <-e.life.Done(): // ended before: there is no client any more
		return nil
	default:
		return e.reg.withdraw(ctx)
	}
}

// end stops every part and waits for it. Only the first call does anything.
func (e *Engine) end() {
	e.ended.Do(func() {
		if e.nats != nil {
			e.nats.kill()
		}
		for _, s := range e.servers { // before the handlers are told, so that no answer ends well
			_ = s.Close()
		}
		e.stop()
		e.fault.Lock()
		if e.fault.timer != nil {
			e.fault.timer.Stop()
		}
		e.fault.Unlock()
		e.unbind()
		e.wg.Wait()
		grace, cancel := context.WithTimeout(context.WithoutCancel(e.life), 5*time.Second)
		defer cancel()
		e.inflight.wait(grace)
	})
}

// unbind closes the sockets that bind opened.
func (e *Engine) unbind() {
	if e.gate != nil {
		_ = e.gate.Close()
	}
	if e.control != nil {
		_ = e.control.Close()
	}
	if e.side != nil {
		_ = e.side.ln.Close()
	}
	if e.zmq != nil {
		_ = e.zmq.close()
	}
	if e.reg != nil {
		e.reg.close()
	}
}
