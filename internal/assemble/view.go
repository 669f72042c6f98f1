package assemble

import "pointsman/picker"

// CacheBlocks returns how many blocks the events of the target with the given key
// say that it holds. It is false when picks heed no events: by the settings, or
// since no request has been scored here yet.
func (c *Core) CacheBlocks(key string) (int, bool) {
	if c.events == nil || c.Live.Current().Picker.Policy != picker.KVAware {
		return 0, false
	}
	select {
	case <-c.wanted:
		return c.index.Held(key), true
	default:
		return 0, false
	}
}
