package simengine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrFault is returned for a fault that does not exist or is malformed.
var ErrFault = errors.New("unknown fault")

// The fault modes. What each does is in the table that FaultHelp prints.
const (
	faultOK             = "ok"
	faultRefuse         = "refuse"
	faultReset          = "reset"
	faultHangAccept     = "hang_accept"
	faultHangHead       = "hang_head"
	faultStatus         = "status"
	faultStatusHangBody = "status_then_hang_body"
	faultCutAfter       = "cut_after"
	faultHangAfter      = "hang_after"
	faultCloseDelimCut  = "close_delim_cut"
	faultNoDone         = "no_done"
	faultTwoDone        = "two_done"
	faultErrorEvent     = "error_event"
	faultErrorThenDone  = "error_event_then_done"
	faultDataAfterDone  = "data_after_done"
	faultPartialUTF8    = "partial_utf8"
	faultHugeLine       = "huge_line"
	faultSlowToken      = "slow_token"
	fault1xx            = "1xx"
	faultTrailers       = "trailers"
	faultGzip           = "gzip"
	faultKeepalive      = "keepalive_comments"
)

// faultMode describes one mode: whether it takes an argument, that argument's
// default (-1: it must be given), and what it does.
type faultMode struct {
	name string
	arg  bool
	def  int
	help string
}

func faultModes() []faultMode {
	return []faultMode{
		{faultOK, false, 0, "behaves"},
		{faultRefuse, false, 0, "the port is closed: connections are refused; ended by for_ms, the control port or SetFault"},
		{faultReset, false, 0, "new connections, and requests on old ones, are reset"},
		{faultHangAccept, false, 0, "connections are accepted and never read"},
		{faultHangHead, false, 0, "the request is read and never answered"},
		{faultStatus, true, -1, "answers this status with an error object"},
		{faultStatusHangBody, true, 200, "sends this status and headers, then nothing"},
		{faultCutAfter, true, -1, "resets the connection after this many events (half way through an unary body)"},
		{faultHangAfter, true, 3, "is silent behind this many events, without an end (half way through an unary body)"},
		{faultCloseDelimCut, true, 3, "a body ended by closing the connection, closed cleanly after this many events"},
		{faultNoDone, false, 0, "ends the stream without [DONE]"},
		{faultTwoDone, false, 0, "sends [DONE] twice"},
		{faultErrorEvent, true, 2, "after this many events sends an error event and ends without [DONE]"},
		{faultErrorThenDone, true, 2, "the same, with [DONE]"},
		{faultDataAfterDone, false, 0, "goes on with an event after [DONE]"},
		{faultPartialUTF8, false, 0, "splits a character of an event over two writes"},
		{faultHugeLine, true, 1 << 20, "one event carries this many bytes of text"},
		{faultSlowToken, true, -1, "waits this many milliseconds after each event"},
		{fault1xx, false, 0, "sends 103 Early Hints and 102 Processing first"},
		{faultTrailers, false, 0, "ends the response with trailers"},
		{faultGzip, false, 0, "compresses the response whether or not asked to"},
		{faultKeepalive, false, 0, "sends an SSE comment before each event"},
	}
}

// FaultHelp describes every fault mode, one per line.
func FaultHelp() string {
	var b strings.Builder
	for _, m := range faultModes() {
		name := m.name
		switch {
		case m.arg && m.def < 0:
			name += ":N"
		case m.arg:
			name += "[:N=" + strconv.Itoa(m.def) + "]"
		}
		fmt.Fprintf(&b, "  %-31s %s\n", name, m.help)
	}
	return b.String()
}

// fault is one mode with its argument. The zero value behaves.
type fault struct {
	mode string
	arg  int
	text string // as given
}

// is reports whether f is one of modes.
func (f fault) is(modes ...string) bool { return slices.Contains(modes, f.mode) }

// atConnect reports whether f strikes connections rather than requests.
func (f fault) atConnect() bool { return f.is(faultRefuse, faultReset, faultHangAccept) }

// parseFault reads "mode" or "mode:N". Errors wrap [ErrFault].
func parseFault(s string) (fault, error) {
	name, arg, has := strings.Cut(strings.TrimSpace(s), ":")
	for _, m := range faultModes() {
		if m.name != name {
			continue
		}
		f := fault{mode: name, arg: m.def, text: s}
		switch {
		case name == faultOK:
			return fault{}, nil
		case has && !m.arg:
			return fault{}, fmt.Errorf("%w: %q takes no argument", ErrFault, name)
		case has:
			n, err := strconv.Atoi(arg)
			if err != nil || n < 0 {
				return fault{}, fmt.Errorf("%w: %q: the argument must be a number, 0 or more", ErrFault, s)
			}
			f.arg = n
		case m.def < 0 && m.arg:
			return fault{}, fmt.Errorf("%w: %q needs an argument: %s:N", ErrFault, name, name)
		}
		if f.is(faultStatus, faultStatusHangBody) && (f.arg < 200 || f.arg > 599) {
			return fault{}, fmt.Errorf("%w: %q: give a status of 200 to 599", ErrFault, s)
		}
		return f, nil
	}
	return fault{}, fmt.Errorf("%w: %q; the modes are\n%s", ErrFault, name, FaultHelp())
}

// Fault makes an engine misbehave.
type Fault struct {
	Mode        string  `json:"mode"`        // mode or mode:N, see FaultHelp; "" is "ok"
	Count       int     `json:"count"`       // requests (or connections) to strike; 0 for all
	Probability float64 `json:"probability"` // share of them; 0 means 1
	ForMS       int     `json:"for_ms"`      // how long, in milliseconds; 0 until changed
}

// faults holds the fault in force.
type faults struct {
	mu     sync.Mutex
	rng    *rand.Rand
	spec   Fault
	cur    fault
	left   int // strikes left; -1 for no bound
	until  time.Time
	struck int
}

// set puts spec in force. Errors wrap [ErrFault].
func (s *faults) set(spec Fault, now time.Time) (fault, error) {
	if spec.Mode == "" {
		spec.Mode = faultOK
	}
	f, err := parseFault(spec.Mode)
	switch {
	case err != nil:
		return fault{}, err
	case spec.Probability < 0 || spec.Probability > 1 || spec.Count < 0 || spec.ForMS < 0:
		return fault{}, fmt.Errorf("%w: probability is 0 to 1, count and for_ms 0 or more", ErrFault)
	case f.is(faultRefuse) && (spec.Count > 0 || (spec.Probability > 0 && spec.Probability < 1)):
		return fault{}, fmt.Errorf("%w: a closed port can't count or choose connections: use reset", ErrFault)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spec, s.cur, s.left, s.until, s.struck = spec, f, -1, time.Time{}, 0
	if spec.Count > 0 {
		s.left = spec.Count
	}
	if spec.ForMS > 0 {
		s.until = now.Add(time.Duration(spec.ForMS) * time.Millisecond)
	}
	return f, nil
}

// draw decides what happens to one request, or, with connect, to one connection.
func (s *faults) draw(now time.Time, connect bool) fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.cur.mode == "" || s.left == 0,
		connect && !s.cur.atConnect(),
		!s.until.IsZero() && !now.Before(s.until),
		s.spec.Probability > 0 && s.rng.Float64() >= s.spec.Probability:
		return fault{}
	}
	if s.left > 0 {
		s.left--
	}
	s.struck++
	return s.cur
}

// faultStatusReport is the answer of GET /control/fault.
type faultStatusReport struct {
	Fault
	Struck int `json:"struck"`
}

func (s *faults) report() faultStatusReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return faultStatusReport{Fault: s.spec, Struck: s.struck}
}
