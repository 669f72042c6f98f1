package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/prompt"
)

func key(n uint64) cacheKey { return cacheKey{Lo: n} }

func TestTheCacheKeepsWhatWasUsedLastWithinItsBytes(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newCache(3*(entryBytes+400), time.Minute)
	put := func(n uint64) {
		_, asked, lead := c.get(key(n), now, nil)
		if !lead {
			t.Fatalf("key %d is known", n)
		}
		c.end(key(n), asked, now, make([]uint32, 100), true)
	}
	known := func(n uint64) bool {
		_, asked, lead := c.get(key(n), now, nil)
		if lead {
			c.end(key(n), asked, now, nil, false)
		}
		return asked == nil
	}
	for n := range uint64(3) {
		put(n)
	}
	if !known(0) { // and so used last
		t.Fatal("key 0 is not known")
	}
	put(3)
	if got := []bool{known(0), known(1), known(2), known(3)}; !slices.Equal(got, []bool{true, false, true, true}) {
		t.Errorf("known: %v", got)
	}
	if c.bytes() != 3*(entryBytes+400) || len(c.entries) != 3 || c.recent.Len() != 3 {
		t.Errorf("%d bytes in %d entries", c.bytes(), len(c.entries))
	}
	now = now.Add(time.Minute)
	if known(0) || c.bytes() != 2*(entryBytes+400) {
		t.Errorf("an old answer is still used; %d bytes", c.bytes())
	}
	_, asked, _ := c.get(key(9), now, nil)
	c.end(key(9), asked, now, make([]uint32, 1000), true)
	if known(9) {
		t.Error("an answer larger than the cache was kept")
	}
	if len(c.asking) != 0 {
		t.Errorf("%d questions are still asked", len(c.asking))
	}
}

func TestACachedAnswerIsACopy(t *testing.T) {
	c := newCache(1<<20, time.Minute)
	ids := []uint32{1, 2}
	_, asked, _ := c.get(key(1), time.Time{}, nil)
	c.end(key(1), asked, time.Time{}, ids, true)
	ids[0] = 9
	got, _, _ := c.get(key(1), time.Time{}, []uint32{7})
	if !slices.Equal(got, []uint32{7, 1, 2}) {
		t.Errorf("got %v", got)
	}
}

func TestACircuitLetsOneThroughAfterEachCooldown(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newCircuits(2, 5*time.Second)
	s, other := subject{"m", prompt.Chat}, subject{"m", prompt.Completions}
	step := func(want bool, what string) {
		t.Helper()
		if c.allow(s, now) != want {
			t.Errorf("%s: allow = %v", what, !want)
		}
	}
	step(true, "at first")
	if c.failure(s, now) {
		t.Error("opened after one failure")
	}
	step(true, "after one failure")
	if !c.failure(s, now) {
		t.Error("not opened after two failures")
	}
	step(false, "after two failures")
	if !c.allow(other, now) {
		t.Error("another kind of request is left alone too")
	}
	now = now.Add(5 * time.Second)
	step(true, "after the cooldown")
	step(false, "while the one that was let through is out")
	if c.failure(s, now) {
		t.Error("opened twice")
	}
	now = now.Add(5 * time.Second)
	step(true, "after the next cooldown")
	if !c.success(s) {
		t.Error("success did not say that it recovered")
	}
	step(true, "after a success")
	if c.success(s) {
		t.Error("recovered twice")
	}
	for range 3 {
		if c.refused(s, now) {
			t.Error("refusals open a circuit that has seen success")
		}
	}
	if c.refused(other, now) || !c.refused(other, now) {
		t.Error("refusals do not open a circuit that has never seen success")
	}
	c.keep(func(string) bool { return false })
	if len(c.known) != 0 {
		t.Error("departed models are remembered")
	}
}

func TestEveryReasonIsListed(t *testing.T) {
	for _, err := range []error{
		nil, ErrUnsupported, ErrTooLong, ErrNoWorker, ErrSkipped, ErrBusy, fmt.Errorf("x: %w", prompt.ErrAnswer),
		&StatusError{Worker: "w", Code: 503}, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, errors.New("reset"),
	} {
		if !slices.Contains(reasons(), reason(err)) {
			t.Errorf("%v has the unlisted reason %s", err, reason(err))
		}
	}
	if msg := (&StatusError{Worker: "w", Code: 503}).Error(); !strings.Contains(msg, "w") || !strings.Contains(msg, "503") {
		t.Error(msg)
	}
}

func TestConfigFaultsAreAllReported(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{CacheBytes: -1}.Validate()
	for _, word := range []string{"timeout", "concurrency", "prompt limit", "cache is", "cache age", "threshold", "cooldown"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s is not reported: %v", word, err)
		}
	}
}

func TestAnotherCanaryIsAnotherTokenizer(t *testing.T) {
	seen := map[uint64]bool{}
	for _, ids := range [][]uint32{nil, {0}, {0, 0}, {1}, {1, 2}, {2, 1}} {
		h := canary(&fleet.Worker{Canary: ids})
		if seen[h] {
			t.Errorf("canary %v is like another", ids)
		}
		seen[h] = true
	}
}
