package admission

import (
	"fmt"
	"strconv"
)

// Response headers that tell of the gate (contract 2C).
const (
	HeaderInflight = "x-infera-admission-inflight"
	HeaderQueued   = "x-infera-admission-queued"
	HeaderLimit    = "x-infera-admission-limit" // 0 for no limit
)

// Expose says when responses have these headers.
type Expose string

// What may be chosen (contract fc_expose_headers).
const (
	ExposeInherit Expose = "inherit" // while enforcing
	ExposeOn      Expose = "on"
	ExposeOff     Expose = "off"
)

// Headers is what a door reads of requests and tells in responses. Names are in
// lower case. The zero value reads nothing and tells while enforcing.
type Headers struct {
	// Tenant is the header that names the tenant; "", the default, is none. Whoever
	// authenticates the client must set it: a client's own would let it take
	// every tenant's share.
	Tenant string
	// Priority is the header that holds the priority, a whole number, 0 when it is
	// absent; "", the default, is none. It must be set as the tenant's is.
	Priority string
	// Expose says when responses tell of the gate; "" is ExposeInherit.
	Expose Expose
}

// Validate reports every fault of h.
func (h Headers) Validate() error {
	switch h.Expose {
	case "", ExposeInherit, ExposeOn, ExposeOff:
		return nil
	}
	return fmt.Errorf("expose headers %q: want inherit, on or off", h.Expose)
}

// Tells reports whether responses have the headers in mode m.
func (h Headers) Tells(m Mode) bool {
	switch h.Expose {
	case ExposeOn:
		return true
	case ExposeOff:
		return false
	case ExposeInherit:
	}
	return m == Enforce
}

// maxPriority bounds what a priority header may say.
const maxPriority = 1 << 20

// PriorityOf reads a priority header; what is no number is 0.
func PriorityOf(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return min(maxPriority, max(-maxPriority, n))
}

// maxUnits bounds what a body can say of itself; far above any ceiling.
const maxUnits = 1 << 20

// UnitsOf returns what a request for n choices, of which bestOf are computed,
// counts for; 0 stands for absent.
func UnitsOf(n, bestOf int) int { return min(maxUnits, max(1, n, bestOf)) }
