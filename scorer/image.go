package scorer

// BlocksPerImage is what one image counts for, in blocks: an image's embedding
// takes about that much of a prompt. (Infera kv_event_aware.py: w_mm = w * 48.)
const BlocksPerImage = 48

// Image prices the images of a request that a candidate has not seen lately.
func Image(in *Input, weight float64, cost []float64) {
	each := weight * BlocksPerImage * in.Unit
	for i, n := range in.Missing {
		cost[i] += each * n
	}
}
