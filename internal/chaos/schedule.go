package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Kind is a way to break something.
type Kind string

// The faults. Those of one worker name it by its place in the fleet.
const (
	Kill          Kind = "kill"           // SIGKILL, and started again when healed
	Pause         Kind = "pause"          // SIGSTOP
	Refuse        Kind = "refuse"         // its port is closed
	Reset         Kind = "rst"            // its connections are reset
	Status500     Kind = "500"            // it answers 500
	Cut           Kind = "cut"            // it breaks streams off behind the third event
	LeaseLoss     Kind = "lease-loss"     // etcd forgets it
	NATSPartition Kind = "nats-partition" // the forwarders hear nothing from the broker
	NATSRestart   Kind = "nats-restart"   // the broker is stopped, and started when healed
	Reload        Kind = "config-reload"  // the programs' settings change
	EPPRestart    Kind = "epp-restart"    // one picker ends in order, and is started when healed
	ClientCancel  Kind = "client-cancel"  // every client that waits leaves
)

// perWorker and global are the kinds in the order in which the dice count them.
func perWorker() []Kind { return []Kind{Kill, Pause, Refuse, Reset, Status500, Cut, LeaseLoss} }

func global() []Kind { return []Kind{NATSPartition, NATSRestart, Reload, EPPRestart, ClientCancel} }

// Step breaks something for a time.
type Step struct {
	At     time.Duration // from the beginning of the run
	For    time.Duration
	Kind   Kind
	Target int // index of the worker or of the picker; -1 for what has none
}

// String is one line about the step.
func (s Step) String() string {
	target := ""
	if s.Target >= 0 {
		target = fmt.Sprintf(" of %d", s.Target)
	}
	return fmt.Sprintf("%6.2fs %s%s for %.2fs", s.At.Seconds(), s.Kind, target, s.For.Seconds())
}

// Schedule is the steps of a run in order of time.
type Schedule []Step

// String is the schedule, a step per line.
func (s Schedule) String() string {
	var b strings.Builder
	for _, step := range s {
		b.WriteString(step.String() + "\n")
	}
	return b.String()
}

// Times of a schedule.
const (
	firstStep  = time.Second
	meanPause  = 900 * time.Millisecond
	leastFault = 500 * time.Millisecond
	meanFault  = 1500 * time.Millisecond
	mostFault  = 6 * time.Second
)

// Draw returns the schedule of a seed: faults within the given time, none of
// which outlasts it. roles are the workers' kinds; of each kind one worker is
// always left alone, and no worker or picker has two faults at once.
func Draw(seed uint64, within time.Duration, roles []string, epps int) Schedule {
	rng := rand.New(rand.NewPCG(seed, 0x706f696e74)) //nolint:gosec // repeatable chance is what is wanted
	d := drawing{rng: rng, roles: roles, busy: map[string]time.Duration{}}
	var out Schedule
	for at := firstStep; ; at += time.Duration((0.2 + rng.ExpFloat64()) * float64(meanPause)) {
		length := min(mostFault, leastFault+time.Duration(rng.ExpFloat64()*float64(meanFault)))
		if at+leastFault > within {
			return out
		}
		if step, ok := d.step(at, min(length, within-at), epps); ok {
			out = append(out, step)
		}
	}
}

// drawing is what is broken until when.
type drawing struct {
	rng   *rand.Rand
	roles []string
	busy  map[string]time.Duration
}

// step draws one fault; false when what it would break is broken already.
func (d *drawing) step(at, length time.Duration, epps int) (Step, bool) {
	s := Step{At: at, For: length, Target: -1}
	if d.rng.Float64() < 0.3 {
		kinds := global()
		s.Kind = kinds[d.rng.IntN(len(kinds))]
		if s.Kind == EPPRestart {
			s.Target = d.rng.IntN(epps)
		}
		return s, d.take(string(s.Kind), s)
	}
	kinds := perWorker()
	s.Kind, s.Target = kinds[d.rng.IntN(len(kinds))], d.rng.IntN(len(d.roles))
	broken, size := 0, 0
	for i, role := range d.roles {
		if role != d.roles[s.Target] {
			continue
		}
		size++
		if d.busy[workerKey(i)] > at {
			broken++
		}
	}
	return s, broken+1 < size && d.take(workerKey(s.Target), s)
}

func workerKey(i int) string { return fmt.Sprint("worker ", i) }

func (d *drawing) take(what string, s Step) bool {
	if d.busy[what] > s.At {
		return false
	}
	d.busy[what] = s.At + s.For + leastFault
	return true
}
