package picker

import "time"

// Scraped is what a worker's engine says of itself when it is asked, late by the time
// between two questions. Only [LLMD] goes by it.
type Scraped struct {
	// Queued is how many requests the engine has not begun; below 0 what the ledger
	// and reports say counts, which is never late.
	Queued float64
	Usage  float64 // share of its KV memory in use, 0 to 1
	// At is when it was so: 15 s later it is as if the engine had not been asked. Zero
	// counts for ever.
	At time.Time
}

// scrapedStale is the age from which an engine's answer counts no more: three
// questions without one.
const scrapedStale = 15 * time.Second

// SetScraped says what the engine of a worker's rank has answered; -1 is every rank of
// the worker, of which an engine that speaks for all tells the fullest. A target that
// the fleet does not have is ignored.
func (p *Picker) SetScraped(workerID string, rank int, s Scraped) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.sync().ids[workerID] {
		if r.Rank == rank || rank < 0 {
			r.t.scraped, r.t.asked = s, true
		}
	}
}

// dropScraped forgets what engines have said too long ago, with mu held.
func (p *Picker) dropScraped(now time.Time) {
	for _, t := range p.targets {
		if t.asked && !t.scraped.At.IsZero() && now.Sub(t.scraped.At) > scrapedStale {
			t.asked = false
		}
	}
}

// UsesUsage reports whether the policy, or its shadow, goes by how much of their KV
// memory workers use, which only their engines know.
func (c *Config) UsesUsage() bool {
	return (c.Policy == LLMD || c.Shadow == LLMD) && c.LLMD.Usage > 0
}
