// Package traffic makes conversations, sends them through a gateway, and judges
// every answer.
//
// A [Plan] comes from [Generate], which draws conversations with the statistics
// of the Mooncake conversation trace, or from [ReadTrace], which takes the real
// arrivals, lengths and shared prefixes of a trace file. The same seed gives the
// same requests, byte for byte. A [Driver] sends the plan in real time and
// returns one [Result] per request. A [Ceiling] says how much of the same
// requests an unbounded cache would have hit.
//
// # Concurrency
//
// A Plan is not changed once made and may be shared. [Driver.Run] runs each
// conversation in a goroutine of its own and calls its observer from them.
// A Ceiling has one user at a time.
package traffic
