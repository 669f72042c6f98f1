package scorer

// KVOverlap prices the prompt tokens that a candidate does not hold and would
// have to prefill. (Infera kv_event_aware.py: w_text * (B - hits).)
func KVOverlap(in *Input, weight float64, cost []float64) {
	for i, miss := range in.Miss {
		cost[i] += weight * miss
	}
}
