// Package testkit is what tests of any room need: to wait for what comes in its own
// time, and to hear what a part logs. It imports nothing of ours, so that every
// room's tests can use it; whole servers are in testfleet.
//
// # Concurrency
//
// Waiting is for the test's own goroutine. A [Log] may be written and read from any.
package testkit

import (
	"strings"
	"testing"
	"time"
)

// Patience is how long [Until] waits. It is many times what anything takes, for a
// machine on which other tests run.
const Patience = 20 * time.Second

const look = time.Millisecond

// Until waits for something that nothing announces: a state behind a real socket or
// in another process. It asks once a millisecond whether it is so. After [Patience]
// it fails the test, with what it waited for and what the states say then. In a
// synctest bubble use synctest.Wait.
func Until(tb testing.TB, what string, is func() bool, states ...func() string) {
	tb.Helper()
	Within(tb, Patience, what, is, states...)
}

// Within is [Until] with a limit that is part of what is tested.
func Within(tb testing.TB, limit time.Duration, what string, is func() bool, states ...func() string) {
	tb.Helper()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !is(); <-tick.C {
		if time.Now().Before(deadline) {
			continue
		}
		var now strings.Builder
		for _, state := range states {
			now.WriteString("\n" + state())
		}
		tb.Fatalf("after %v still not: %s%s", limit, what, now.String())
	}
}
