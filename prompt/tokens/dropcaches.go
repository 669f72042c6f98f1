package tokens

// DropWordCaches forgets all cached words, for measurements of a cold start. It
// does not touch the caches of calls that are running.
func (t *Tokenizer) DropWordCaches() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.free {
		e.cache.clear()
	}
}
