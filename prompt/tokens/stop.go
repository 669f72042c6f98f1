package tokens

import "time"

// Stop says when an encoding is given up. The zero value never does.
type Stop struct {
	Done  <-chan struct{} // closed when nobody waits any more; nil is never
	Until time.Time       // the zero time is never
}

// stopBytes is how much text is encoded between two looks at a Stop, about; merges
// for merging one long word.
const (
	stopBytes  = 16 << 10
	stopMerges = 8 << 10
)

// stopper is a Stop that has been seen to say so, or not.
type stopper struct {
	stop    Stop
	stopped bool // ids are incomplete from here on: nothing may be remembered
}

// halt looks whether to give up. Once it says so, it goes on doing so.
func (s *stopper) halt() bool {
	if s.stopped {
		return true
	}
	select {
	case <-s.stop.Done:
		s.stopped = true
	default:
		s.stopped = !s.stop.Until.IsZero() && !time.Now().Before(s.stop.Until)
	}
	return s.stopped
}
