package admission

// holder is what a waiting request waits for.
type holder uint8

const (
	heldByCeiling holder = iota
	heldByTenant
	heldByWorkers
)

func (g *Gate) holds(r *Request) holder {
	switch {
	case !g.fits(r):
		return heldByCeiling
	case g.overShare(r):
		return heldByTenant
	}
	return heldByWorkers
}

// fits reports whether the ceiling has room for r. A request of more units than
// a ceiling that was lowered goes when nothing else runs: it would never go else.
func (g *Gate) fits(r *Request) bool {
	return r.holding || r.Units == 0 || g.limit == 0 || g.used+r.Units <= g.limit || g.used == 0 || g.Mode() == Off
}

// overShare reports whether r's tenant has all that one may.
func (g *Gate) overShare(r *Request) bool {
	if r.slot == nil || r.holding || g.limit == 0 || g.cfg.TenantSharePct == 0 {
		return false
	}
	return r.slot.used > 0 && r.slot.used+r.Units > share(g.limit, g.cfg.TenantSharePct)
}
