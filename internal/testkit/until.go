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

// The pauses between looks are a sixteenth of the time waited so far, so that what is
// soon is seen at once and what is late costs nothing.
const (
	firstPause   = time.Millisecond
	longestPause = 100 * time.Millisecond
)

// Until waits for something that nothing announces: a state behind a real socket or
// in another process. It asks again and again whether it is so. After [Patience] it
// fails the test, with what it waited for and what the states say then. In a synctest
// bubble use synctest.Wait.
func Until(tb testing.TB, what string, is func() bool, states ...func() string) {
	tb.Helper()
	Within(tb, Patience, what, is, states...)
}

// Within is [Until] with a limit that is part of what is tested.
func Within(tb testing.TB, limit time.Duration, what string, is func() bool, states ...func() string) {
	tb.Helper()
	for begin := time.Now(); !is(); {
		waited := time.Since(begin)
		if waited < limit {
			time.Sleep(min(max(waited/16, firstPause), longestPause))
			continue
		}
		var now strings.Builder
		for _, state := range states {
			now.WriteString("\n" + state())
		}
		tb.Fatalf("after %v still not: %s%s", limit, what, now.String())
	}
}

// Pass lets real time pass: a peer that takes its time, when what others do meanwhile
// is what is tested, or what gives no sign at all. Why says which. Where there is a
// sign, wait for it with [Until]; where there is no socket, use a synctest bubble.
func Pass(d time.Duration, why string) {
	_ = why // for who reads the test
	time.Sleep(d)
}
