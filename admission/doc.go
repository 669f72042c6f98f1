// Package admission decides what a program takes on: how many requests run, who
// waits for how long, and who is refused. Its [Budget] bounds memory.
//
// A request's way: a door (extproc, forward) calls [Gate.Enter] with a function
// that picks the worker. Below the ceiling and with nobody before it, it is picked
// for at once; else it waits in the queue, by priority and then by age. Whoever
// gives capacity back ([Pass.Release], [Gate.Wake]) picks for those that wait, in
// order, until the first that finds no room: nobody is woken in vain, nobody loses
// the place in the queue, and no newcomer comes before it. What ends a wait
// otherwise is the deadline, which is set when the request first has to wait, the
// end of its context, a more important request when the queue is full, and
// [Gate.Drain].
//
// In mode [Observe] every request runs at once and a shadow of it goes through the
// same queue: what is counted as observe_would_shed is what [Enforce] refuses on
// the same arrivals. Caps of single workers are the picker's: its ledger says
// [ErrFull].
//
// # Concurrency
//
// All methods are safe for concurrent use. One mutex guards a gate, and in mode
// Enforce picks are made under it: the picker makes one at a time anyway.
// [Gate.Wake] never blocks. Each waiting request sleeps in its own goroutine, on
// its own timer.
package admission
