package admission

// tenant is what one tenant, or all that found no slot, has.
type tenant struct {
	name    string
	used    int // units running
	queued  int // requests waiting
	holders int // requests with this slot
}

// tenants is a bounded table: names come from clients.
type tenants struct {
	slots    map[string]*tenant
	overflow tenant
}

// take returns the slot of name; full says that it is the shared one.
func (t *tenants) take(name string) (slot *tenant, full bool) {
	s := t.slots[name]
	switch {
	case s != nil:
	case len(t.slots) >= tenantSlots:
		s, full = &t.overflow, true
	default:
		if t.slots == nil {
			t.slots = make(map[string]*tenant, tenantSlots)
		}
		s = &tenant{name: name}
		t.slots[name] = s
	}
	s.holders++
	return s, full
}

// give ends one request's hold of s.
func (t *tenants) give(s *tenant) {
	if s.holders--; s.holders == 0 && s != &t.overflow {
		delete(t.slots, s.name)
	}
}

// active returns how many tenants have requests, the shared slot being one.
func (t *tenants) active() int {
	n := len(t.slots)
	if t.overflow.holders > 0 {
		n++
	}
	return n
}
