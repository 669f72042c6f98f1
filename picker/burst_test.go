package picker_test

import (
	"strconv"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// Issue 7: 400 requests at once that share a prefix, on 8 cold workers, spread; and
// the 400 after them find it.
func TestABurstOnAColdFleetSpreadsAndTheNextOneHits(t *testing.T) {
	for _, policy := range []string{picker.KVAware, picker.LeastLatency} {
		ids := make([]string, 8)
		for i := range ids {
			ids[i] = "w" + strconv.Itoa(i)
		}
		w := newWorld(t, config(policy, 20), workers(ids...)...)
		burst := func(round string) (flying []picker.Decision, hit, asked int, most int) {
			sent := map[string]int{}
			for i := range 400 {
				req := w.request("sys:4096+" + round + strconv.Itoa(i) + ":512")
				d := w.pick(req)
				sent[d.Worker.ID]++
				most = max(most, sent[d.Worker.ID])
				hit, asked = hit+d.HitTokens, asked+req.Tokens
				flying = append(flying, d)
				w.now = w.now.Add(250 * time.Microsecond)
			}
			return flying, hit, asked, most
		}
		first, _, _, most := burst("a")
		if most > 100 {
			t.Errorf("%s: %d of 400 on one of 8 cold workers, want at most twice the mean", policy, most)
		}
		for i := range first {
			first[i].FirstToken(w.now)
			first[i].Done(w.now, breaker.Success)
		}
		_, hit, asked, _ := burst("b")
		if got := float64(hit) / float64(asked); got < 0.8 {
			t.Errorf("%s: the next 400 hit %.2f, want 0.8", policy, got)
		}
	}
}
