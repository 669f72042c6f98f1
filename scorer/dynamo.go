package scorer

// Dynamo prices like NVIDIA Dynamo's KV router with its defaults: the tokens that a
// candidate has to prefill, those of its queue included, plus the tokens of the
// blocks that are active on it. The weight stands for --router-prefill-load-scale
// times 1. (Dynamo docs/components/router/router-concepts.md: cost =
// prefill_load_scale * adjusted_prefill + decode_blocks, in blocks; credits of the
// host and disk tiers count as device hits here.)
func Dynamo(in *Input, weight float64, cost []float64) {
	for i, active := range in.Active {
		cost[i] += weight * (adjustedPrefill(in, i) + active + in.Prompt)
	}
}

// DynamoLMetric is Dynamo's other formula: the product of what is to be prefilled
// and of what is decoded. (The same document: router_selection_policy=lmetric, cost =
// adjusted_prefill * (decode_blocks + 1).)
func DynamoLMetric(in *Input, weight float64, cost []float64) {
	for i, active := range in.Active {
		cost[i] += weight * adjustedPrefill(in, i) * (active + in.Prompt + in.Unit)
	}
}

// adjustedPrefill is max(active_prefill + incoming - overlap_credit, 0), in tokens.
func adjustedPrefill(in *Input, i int) float64 {
	return max(0, in.Waiting[i]+in.Prompt-in.Held[i])
}
