package chaos

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"pointsman/internal/history"
	"pointsman/internal/retry"
)

// breakage carries out a schedule.
type breakage struct {
	f    *fleet
	load *load
	out  io.Writer // progress

	settings sync.Mutex // a picker must not start while the settings file is a bad one

	mu     sync.Mutex
	turns  map[string]*sync.Mutex // by what is broken
	faults []history.Fault
	errs   []error
}

// run does every step at its time and returns when all are healed.
func (b *breakage) run(ctx context.Context, plan Schedule, start time.Time) {
	var wg sync.WaitGroup
	for _, s := range plan {
		wg.Go(func() {
			if !retry.Sleep(ctx, time.Until(start.Add(s.At))) {
				return
			}
			b.step(ctx, s, start)
		})
	}
	wg.Wait()
}

func (b *breakage) step(ctx context.Context, s Step, start time.Time) {
	if s.Kind == Reload || s.Kind == EPPRestart {
		b.settings.Lock()
		defer b.settings.Unlock()
	}
	// On a busy machine a restart may outlast the pause that the schedule gives it.
	turn := b.turn(s)
	turn.Lock()
	defer turn.Unlock()
	from := time.Now()
	b.say("%6.2fs %s", time.Since(start).Seconds(), s)
	err := b.begin(ctx, s)
	retry.Sleep(ctx, s.For)
	// What is broken is healed even when the run is being given up.
	if healed := b.heal(context.WithoutCancel(ctx), s); err == nil {
		err = healed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, b.concerns(s, from, time.Now())...)
	if err != nil {
		b.errs = append(b.errs, fmt.Errorf("%s: %w", s, err))
	}
}

// concerns returns the faults that a step comes to: whom it may have cost something.
func (b *breakage) concerns(s Step, from, to time.Time) []history.Fault {
	f := history.Fault{Kind: string(s.Kind), From: from, To: to}
	switch s.Kind {
	case Reload, ClientCancel: // nobody else may notice
		f.Tame = true
	case NATSPartition, NATSRestart: // for those that are reached otherwise it is none
		var all []history.Fault
		for i, w := range b.f.Workers {
			if f.Worker = w.ID; b.overNATS(i) {
				all = append(all, f)
			}
		}
		return all
	case EPPRestart:
	default:
		f.Worker = b.f.Workers[s.Target].ID
	}
	return []history.Fault{f}
}

// turn is held by the one step that breaks what s breaks.
func (b *breakage) turn(s Step) *sync.Mutex {
	what := string(s.Kind)
	if s.Target >= 0 && s.Kind != EPPRestart {
		what = workerKey(s.Target)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turns == nil {
		b.turns = map[string]*sync.Mutex{}
	}
	if b.turns[what] == nil {
		b.turns[what] = new(sync.Mutex)
	}
	return b.turns[what]
}

func (b *breakage) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fmt.Fprintf(b.out, format+"\n", args...)
}

// overNATS reports whether requests reach worker i through the broker: then its
// connections are not the proxy's.
func (b *breakage) overNATS(i int) bool { return !b.f.Workers[i].Config.Direct }

func (b *breakage) begin(ctx context.Context, s Step) error {
	f := b.f
	switch s.Kind {
	case Kill:
		return f.kill(ctx, s.Target)
	case Pause:
		f.Workers[s.Target].Engine.Process().Pause()
	case Refuse:
		if b.overNATS(s.Target) {
			return f.fault(ctx, s.Target, "refuse")
		}
		f.Proxies.Workers[s.Target].Refuse()
	case Reset:
		if b.overNATS(s.Target) {
			return f.fault(ctx, s.Target, "reset")
		}
		return f.Proxies.Workers[s.Target].Reset() //nolint:contextcheck // it does not wait
	case Status500:
		return f.fault(ctx, s.Target, "status:500")
	case Cut:
		return f.fault(ctx, s.Target, "cut_after:3")
	case LeaseLoss:
		return f.loseLease(ctx, f.Workers[s.Target].ID)
	case NATSPartition:
		return f.Proxies.Broker.Silence() //nolint:contextcheck // it does not wait
	case NATSRestart:
		f.Broker.Stop()
	case Reload:
		if s.For > meanFault {
			return f.configure(badSettings)
		}
		return f.configure(goodSettings(4))
	case EPPRestart:
		return f.EPPs[s.Target].Stop(stopTime)
	case ClientCancel:
		b.load.leaveAll()
	}
	return nil
}

func (b *breakage) heal(ctx context.Context, s Step) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	f := b.f
	switch s.Kind {
	case Kill:
		return f.Workers[s.Target].Engine.Start(ctx)
	case Pause:
		f.Workers[s.Target].Engine.Process().Resume()
	case Refuse, Reset:
		if b.overNATS(s.Target) {
			return f.fault(ctx, s.Target, "ok")
		}
		return f.Proxies.Workers[s.Target].Heal() //nolint:contextcheck // it does not wait
	case Status500, Cut:
		return f.fault(ctx, s.Target, "ok")
	case NATSPartition:
		return f.Proxies.Broker.Heal() //nolint:contextcheck // it does not wait
	case NATSRestart:
		return f.Broker.Start(ctx)
	case Reload:
		return f.configure(goodSettings(3))
	case EPPRestart:
		return f.EPPs[s.Target].Start(ctx)
	case LeaseLoss, ClientCancel:
	}
	return nil
}
