package admission

// Wake says that a worker has capacity again or that there is another worker: the
// first that wait are asked for again. It never blocks, so that it may be called
// from anywhere, a Pick included.
func (g *Gate) Wake() {
	g.wakes.Add(1)
	if g.waiters.Load() > 0 && g.mu.TryLock() {
		g.unlock()
	} // else whoever holds the lock sees to it
}

// unlock releases the lock, after it has done what Wake asked for meanwhile.
func (g *Gate) unlock() {
	for {
		seen := g.wakes.Load()
		if g.wanted(seen) {
			clear(g.blocked)
			g.dispatch(g.clock())
		}
		g.mu.Unlock()
		if g.wakes.Load() == seen || g.waiters.Load() == 0 || !g.mu.TryLock() {
			return
		}
	}
}

// wanted reports whether Wake was called since it last reported so.
func (g *Gate) wanted(wakes uint64) bool {
	was := g.woken
	g.woken = wakes
	return was != wakes && g.queue.n > 0
}
