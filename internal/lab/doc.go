// Package lab replays a trace of requests through the product's own picker, index,
// gate and breaker, against simulated engines, in virtual time.
//
// A [Trace] comes from a file ([ReadTrace]) or a generator ([Generate]). [Run]
// sends it once through one [Setup]: a policy, a fleet of engines, what befalls
// their events, and how many routers share them. [Calibrate] finds the rate that
// counts as 100 % load, [Compare] runs many setups, [Goals] the comparison that
// findings/policy.md §6 sets goals for, and [WriteHTML] draws a report.
//
// What decides is real: picker.Picker, kvindex.Index, breaker.Set and
// admission.Gate, fed as the programs feed them. What is simulated is the engine
// (engine.go, cache.go), the network (constant delays) and the clients (requests
// come at their time, whatever became of the ones before).
//
// # Concurrency
//
// A run is one goroutine and reads no clock, so that equal setups give equal
// results. A Trace is read only once it is made: any number of runs may share it.
package lab
