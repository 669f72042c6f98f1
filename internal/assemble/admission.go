package assemble

import (
	"pointsman/admission"
	"pointsman/fleet"
)

// roleLoads reads what the picker's ledger has of each role, for the gate's
// metrics and read-back. Mixed workers are LoxiLB's role "normal".
func (c *Core) roleLoads() []admission.RoleLoad {
	load := func(name string, role fleet.Role) admission.RoleLoad {
		n, most := c.Picker.InFlight(role)
		return admission.RoleLoad{Role: name, Inflight: n, Limit: most}
	}
	return []admission.RoleLoad{load("normal", fleet.Mixed), load("prefill", fleet.Prefill), load("decode", fleet.Decode)}
}
