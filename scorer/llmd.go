package scorer

// The three scorers of llm-d's default profile, which the inference extension of the
// Gateway API shares. Theirs give 0 to 1 and the highest sum wins; ours cost what is
// missing to 1. Their default weights are 2, 2 and 3 (EndpointPickerConfig of
// llm-d-router's guides).

// LLMDQueue prices a candidate's place between the shortest and the longest queue.
// (llm-d-router queue-scorer: (max-q)/(max-min), 1 where all are equal.) Their
// queues are scraped from the engines: see [Input].Queued.
func LLMDQueue(in *Input, weight float64, cost []float64) {
	low, high := in.spread(in.Queued)
	if high <= low {
		return
	}
	for i, n := range in.Queued {
		cost[i] += weight * (n - low) / (high - low)
	}
}

// LLMDUsage prices the share of its KV memory that a candidate uses. (llm-d-router
// kv-cache-utilization-scorer: 1 - usage.) Only the engine knows it: see
// [Input].Usage.
func LLMDUsage(in *Input, weight float64, cost []float64) {
	for i, share := range in.Usage {
		cost[i] += weight * share
	}
}

// LLMDPrefix prices the share of the prompt that a candidate does not hold.
// (llm-d-router prefix-cache-scorer with its default matchLengthWeight of 0:
// matched blocks / all blocks.)
func LLMDPrefix(in *Input, weight float64, cost []float64) {
	if in.Prompt <= 0 {
		return
	}
	for i, held := range in.Held {
		cost[i] += weight * (1 - min(1, held/in.Prompt))
	}
}
