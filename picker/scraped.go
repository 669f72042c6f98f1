package picker

// Scraped is what a worker's engine says of itself when it is asked, late by the time
// between two questions. Only [LLMD] goes by it; the replay lab asks its engines so.
type Scraped struct {
	Queued float64 // requests that the engine has not begun
	Usage  float64 // share of its KV memory in use, 0 to 1
}

// SetScraped says what the engine of a worker's rank (-1 for a worker without ranks)
// has answered. A target that the fleet does not have is ignored.
func (p *Picker) SetScraped(workerID string, rank int, s Scraped) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.sync().ids[workerID] {
		if r.Rank == rank || rank < 0 && r.Rank <= 0 {
			r.t.scraped, r.t.asked = s, true
			return
		}
	}
}
