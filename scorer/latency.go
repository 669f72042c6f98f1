package scorer

// The terms of policy least-latency. Their prices are in estimated milliseconds;
// weights make them so where a column is not in time. Work is in token-equivalents
// (te): tokens, of which a late one counts for more than an early one, because
// attention looks back over all before it.

// Waiting prices the time until a candidate would begin with the request: what is
// queued there before it, at the candidate's own pace.
func Waiting(in *Input, weight float64, cost []float64) {
	pace := in.Pace[:len(in.Queue)]
	cost = cost[:len(in.Queue)]
	for i, te := range in.Queue {
		cost[i] += weight * te * pace[i]
	}
}

// Prefill prices the time that a candidate would compute the prompt's part that it
// does not hold, at its own pace.
func Prefill(in *Input, weight float64, cost []float64) {
	pace := in.Pace[:len(in.Work)]
	cost = cost[:len(in.Work)]
	for i, te := range in.Work {
		cost[i] += weight * te * pace[i]
	}
}

// Later prices what the same work takes from the requests that come after. It goes
// by the fleet's pace: at the candidate's own, fast workers would be spared the
// blame, and flooded in a mixed fleet.
func Later(in *Input, weight float64, cost []float64) {
	weight *= in.FleetPace
	cost = cost[:len(in.Work)]
	for i, te := range in.Work {
		cost[i] += weight * te
	}
}

// Stalled prices what the same work takes from each request that is being decoded,
// at the fleet's pace: prefill and decode share the engine's steps.
func Stalled(in *Input, weight float64, cost []float64) {
	weight *= in.FleetPace
	decoders := in.Decoders[:len(in.Work)]
	cost = cost[:len(in.Work)]
	for i, te := range in.Work {
		cost[i] += weight * te * decoders[i]
	}
}

// Resident prices the context that a candidate's running requests hold: each of
// the answer's tokens reads it.
func Resident(in *Input, weight float64, cost []float64) {
	for i, tokens := range in.Context {
		cost[i] += weight * tokens
	}
}

// Running prices the requests that a candidate decodes.
func Running(in *Input, weight float64, cost []float64) {
	for i, n := range in.Decoders {
		cost[i] += weight * n
	}
}

// Transfer prices the prompt tokens whose KV cache a decode worker does not hold
// and a prefill worker would have to send it.
func Transfer(in *Input, weight float64, cost []float64) {
	for i, hit := range in.Hit {
		cost[i] += weight * max(0, in.Prompt-hit)
	}
}
