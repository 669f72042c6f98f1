package lab

import (
	"pointsman/admission"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/reports"
)

// call is one request of the trace on its way.
type call struct {
	req    *Request
	n      int // in the trace
	router *router
	from   int // number of the router
	w      *worker
	seq    sequence

	ask      picker.Request
	lists    [1]kvindex.Blocks
	ticket   admission.Request
	pass     admission.Pass
	decision picker.Decision
	flight   *reports.Flight // where the forwarder counts it; nil without reports
	tried    []string
	try      int // attempts made

	state  state
	came   int64 // virtual times
	sent   int64 // to the worker that serves it
	first  int64
	ended  int64
	hit    int // prompt tokens that the engine found
	queued bool
}

// state is how far a call is.
type state uint8

const (
	coming state = iota
	parked
	running
	served
	refused
	failed
)
