package e2e

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"pointsman/internal/chaos"
)

// TestNoInvariantIsBrokenWhateverBreaks runs a short schedule of a fixed seed and
// one of a seed that nobody has tried; CHAOS_SEED tries one again. The long runs
// are `make chaos SEED=n`.
func TestNoInvariantIsBrokenWhateverBreaks(t *testing.T) {
	seeds := []uint64{1, 1000 + rand.Uint64N(1_000_000)}
	if text := os.Getenv("CHAOS_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) {
			cfg := chaos.DefaultConfig()
			cfg.Bin, cfg.Envoy, cfg.Log = theRig.bin, theRig.envoy, t.Output()
			cfg.Seed, cfg.Break, cfg.Settle, cfg.Judge = seed, 30*time.Second, 6*time.Second, 3*time.Second
			report, err := chaos.Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", *report)
			if len(report.Violations) > 0 {
				t.Errorf("seed %d breaks %v; make chaos SEED=%d tries it for longer", seed, report.Violations, seed)
			}
			if report.Requests < 100 || report.Succeeded < report.Requests/2 {
				t.Errorf("%d of %d requests succeeded", report.Succeeded, report.Requests)
			}
		})
	}
}
