package assemble

// CacheBlocks returns how many blocks the events of the target with the given key
// say that it holds. It is false when picks heed no events: by the settings, or
// since no request has been scored here yet.
func (c *Core) CacheBlocks(key string) (int, bool) {
	if picking := c.Live.Current().Picker; c.events == nil || !picking.UsesCache() {
		return 0, false
	}
	select {
	case <-c.wanted:
		return c.index.Held(key), true
	default:
		return 0, false
	}
}
