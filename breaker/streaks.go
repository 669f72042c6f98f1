package breaker

// The word of a circuit, from the lowest bit: state 4 | four streaks of 7 | epoch 32.
// One load answers the hot questions, and a permit remembers the epoch it was
// taken in.
const (
	stateBits    = 4
	streakBits   = 7
	streakKinds  = 4 // connect, origin, stream, transfer
	stateMask    = 1<<stateBits - 1
	streakMask   = 1<<streakBits - 1
	streaksMask  = 1<<(streakBits*streakKinds) - 1
	epochShift   = stateBits + streakBits*streakKinds
	maxThreshold = 100 // fits a streak, and failover §2A's bound
)

// streaks holds how many faults of each kind there were in a row.
type streaks uint32

func shift(o Outcome) uint { return uint(o-Connect) * streakBits }

// of returns the streak of o, 0 for what is no fault.
func (s streaks) of(o Outcome) int {
	if !o.Fault() {
		return 0
	}
	return int(s >> shift(o) & streakMask)
}

// with returns s with the streak of o, a fault, set to n.
func (s streaks) with(o Outcome, n int) streaks {
	n = min(max(n, 0), streakMask)
	return s&^(streakMask<<shift(o)) | streaks(n)<<shift(o)
}

// answered returns s after the worker's good answer began: it can be reached, and
// it computes. Only the whole answer says that its streams hold.
func (s streaks) answered() streaks { return s.with(Connect, 0).with(Origin, 0) }

// began returns s after a first token, which also says that the cache of the
// prompt has come from wherever it was computed.
func (s streaks) began() streaks { return s.answered().with(Transfer, 0) }

// failed returns s after the fault o. A worker that failed later than at its door
// was reached.
func (s streaks) failed(o Outcome) streaks {
	n := s.of(o) + 1
	if o != Connect {
		s = s.with(Connect, 0)
	}
	if o == Stream {
		s = s.with(Origin, 0)
	}
	return s.with(o, n)
}

func pack(epoch uint32, st streaks, s State) uint64 {
	return uint64(epoch)<<epochShift | uint64(st)<<stateBits | uint64(s)
}

func unpack(w uint64) (epoch uint32, st streaks, s State) {
	return uint32(w >> epochShift), streaks(w >> stateBits & streaksMask), State(w & stateMask)
}
