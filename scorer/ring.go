package scorer

import "math"

// LoadFactor is how far above the mean a candidate's requests in flight may go before
// the ring passes it by. (Shepherd Model Gateway prefix_hash: load factor 1.25; so
// also in the bounded loads of Mirrokni, Thorup and Zadimoghaddam, 2016, as HAProxy
// and others have it.)
const LoadFactor = 1.25

// RingTokens is how many leading tokens of a prompt give its place on the ring.
// (Shepherd Model Gateway prefix_hash: 256.)
const RingTokens = 256

// Ring prices a candidate's distance on the ring from the place of the prompt's
// beginning, and puts those that would be above the bound behind all others:
// consistent hashing with bounded loads. The bound is ceil(LoadFactor * (m+1) / n)
// for m requests in flight on n candidates.
func Ring(in *Input, weight float64, cost []float64) {
	n, sum := 0, 0.0
	for i, requests := range in.Requests {
		if !in.Out[i] {
			n++
			sum += requests
		}
	}
	bound := math.Ceil(LoadFactor * (sum + 1) / float64(max(1, n)))
	for i, distance := range in.Draw {
		if in.Requests[i]+1 > bound {
			distance++ // farther than any on the ring
		}
		cost[i] += weight * distance
	}
}
