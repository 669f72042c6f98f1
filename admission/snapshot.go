package admission

// Snapshot is what a gate does at one moment, for the read-back.
type Snapshot struct {
	Mode           string `json:"mode"`
	Inflight       int    `json:"in_flight"` // requests running
	Units          int    `json:"units"`     // that these count for
	Queued         int    `json:"queued"`
	QueuedBytes    int64  `json:"queued_bytes"`
	QueueMemoryMiB int64  `json:"queue_memory_bound_mib"`    // 0 no limit
	MaxOutstanding int    `json:"max_outstanding"`           // this program's part; 0 no limit
	EffectiveMax   int    `json:"effective_max_outstanding"` // what may run now
	AdaptState     string `json:"adapt_state"`
	AdaptReason    string `json:"adapt_reason"`
	TenantsActive  int    `json:"tenants_active"`
	Draining       bool   `json:"draining"`
	Warming        int    `json:"warming_endpoints"` // workers below their whole cap; filled in by who knows them

	Roles      []RoleLoad `json:"roles,omitempty"`
	MeanWaitMS int64      `json:"mean_wait_ms"` // of those that waited lately
}

// Snapshot returns the present state.
func (g *Gate) Snapshot() Snapshot {
	roles := g.roleLoads() // which takes another lock
	g.mu.Lock()
	defer g.unlock()
	return Snapshot{
		Mode:           g.Mode().String(),
		Inflight:       g.requests,
		Units:          g.open,
		Queued:         g.queue.n - g.ghosts,
		QueuedBytes:    g.queue.bytes,
		QueueMemoryMiB: g.cfg.QueueBytes >> 20,
		MaxOutstanding: g.cfg.ceiling(),
		EffectiveMax:   g.limit,
		AdaptState:     g.adapt.state,
		AdaptReason:    g.adapt.cause,
		TenantsActive:  g.tenants.active(),
		Draining:       g.draining,
		Roles:          roles,
		MeanWaitMS:     g.meanWait.Milliseconds(),
	}
}

// Counts returns what the response headers tell: units running, requests that
// wait, and the units that may run, 0 for no limit.
func (g *Gate) Counts() (inflight, queued, limit int) {
	g.mu.Lock()
	defer g.unlock()
	return g.open, g.queue.n - g.ghosts, g.limit
}
