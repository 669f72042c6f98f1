package scorer

// InFlight prices the number of requests a candidate is serving.
func InFlight(in *Input, weight float64, cost []float64) {
	for i, n := range in.Requests {
		cost[i] += weight * n
	}
}
