package scorer

// Defaults of the SGLang model gateway's cache_aware (smg model_gateway/src/main.rs:
// cache-threshold, balance-abs, balance-rel).
const (
	sglangMatch    = 0.3
	sglangBalance  = 64
	sglangRelative = 1.5
)

// SGLang orders candidates as the SGLang model gateway's cache_aware does: by
// requests in flight when these are out of balance; else the longest match, when it
// is more than a third of the prompt; else the smallest tree, which is the worker
// that is known to hold least. (Shepherd Model Gateway, cache_aware: "if max-min >
// abs and max > rel*min, shortest queue; else match/len > threshold, best match;
// else smallest tree".)
func SGLang(in *Input, weight float64, cost []float64) {
	low, high := in.spread(in.Requests)
	if high-low > sglangBalance && high > sglangRelative*low {
		for i, n := range in.Requests {
			cost[i] += weight * n
		}
		return
	}
	if _, longest := in.spread(in.Held); longest > sglangMatch*in.Prompt && in.Prompt > 0 {
		for i, held := range in.Held {
			cost[i] += weight * max(0, in.Prompt-held)
		}
		return
	}
	for i, tokens := range in.Stored {
		cost[i] += weight * tokens
	}
}
