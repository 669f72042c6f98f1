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

// Stalled prices what the same work takes from the answers that are being written
// while it is done, at the fleet's pace: prefill and decode share the engine's steps.
// These are of all requests in flight: those that wait now come first, and are
// decoded by then. The weight is for answers of [UsualAnswer] tokens: one that is
// shorter feels the same stall more, for it makes each of its tokens later.
func Stalled(in *Input, weight float64, cost []float64) {
	weight *= in.FleetPace * min(maxHaste, max(1/maxHaste, UsualAnswer/in.Answer))
	requests := in.Requests[:len(in.Work)]
	cost = cost[:len(in.Work)]
	for i, te := range in.Work {
		cost[i] += weight * te * requests[i]
	}
}

// UsualAnswer is the answer, in tokens, that the weight of [Stalled] is meant for: the
// mean of the conversation trace in which it was found. Others count up to four times
// as much, or as little.
const (
	UsualAnswer = 340
	maxHaste    = 4
)

// Resident prices the context that a candidate's requests hold, or will when they are
// decoded beside this one: each of the answer's tokens reads it.
func Resident(in *Input, weight float64, cost []float64) {
	weight *= in.Answer
	coming := in.Coming[:len(in.Context)]
	for i, tokens := range in.Context {
		cost[i] += weight * (tokens + coming[i])
	}
}

// Running prices the requests beside which a candidate would decode: those that wait
// for their first token will be running by then.
func Running(in *Input, weight float64, cost []float64) {
	weight *= in.Answer
	for i, n := range in.Requests {
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
