package e2e

import (
	"fmt"
	"sync"
	"testing"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// TestABurstOnAColdFleetSpreadsAndIsRemembered sends 400 requests with one prefix at
// once to eight workers that have nothing: no worker gets more than twice its part,
// and the 400 that follow find the prefix. It is so at the default overlap weight.
func TestABurstOnAColdFleetSpreadsAndIsRemembered(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.MixedWorkers(8, "--prefill-tokens-per-s", "40000", "--decode-ms-per-step", "5"), Policy: "kv-aware",
	})
	const requests = 400
	prefix := words(1, 800)
	burst := func(name string) (perWorker map[string]int, hit float64) {
		ids := make([]string, requests)
		var all sync.WaitGroup
		for i := range ids {
			ids[i] = id(t, fmt.Sprint(name, i))
			all.Go(func() {
				r := speak(t, s, ids[i], fmt.Sprintf("%s\n\n%s %d. %s", prefix, name, i, words(10+i, 20)), 4, traffic.Observer{})
				if r.Outcome() != traffic.OK {
					t.Error(describe(&r))
				}
			})
		}
		all.Wait()
		perWorker = map[string]int{}
		asked, cached := 0, 0
		for _, requestID := range ids {
			rc := theReceipt(t, s, requestID)
			perWorker[rc.WorkerID]++
			asked, cached = asked+rc.PromptTokens, cached+rc.CachedTokens
		}
		return perWorker, float64(cached) / float64(max(asked, 1))
	}
	spread, cold := burst("first")
	for worker, n := range spread {
		if n > 2*requests/len(s.Workers) {
			t.Errorf("%s got %d of %d, more than twice the mean", worker, n, requests)
		}
	}
	after, warm := burst("then")
	if warm < 0.8 {
		t.Errorf("the requests that followed hit %.2f, want 0.8", warm)
	}
	t.Logf("cold: %v, hit ratio %.2f; then: %v, %.2f", spread, cold, after, warm)
}
