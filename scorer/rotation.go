package scorer

// Rotation prices how short ago a candidate had its turn, so that the one that
// waited longest is next. The order belongs to the candidates, not to a list of
// them: it goes on undisturbed when workers join, leave or are left out for one
// request (Infera's counter per candidate list starts anew then: defect P6).
func Rotation(in *Input, weight float64, cost []float64) {
	for i, turn := range in.Turn {
		cost[i] += weight * turn
	}
}
