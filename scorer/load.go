package scorer

// Load prices what a candidate is busy with: the tokens of the distinct blocks
// in flight on it, and what it had to prefill lately. (Infera
// kv_event_aware.py: load = active + recent.)
func Load(in *Input, weight float64, cost []float64) {
	for i, active := range in.Active {
		cost[i] += weight * (active + in.Recent[i])
	}
}
