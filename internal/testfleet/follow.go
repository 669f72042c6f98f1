package testfleet

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/internal/testkit"
)

// Following is a discovery backend at work, and what it made of the fleet.
type Following struct {
	Store *fleet.Store
	Log   *testkit.Log // what the backend has said

	tb testing.TB
}

// Follow runs the backend that open makes with the given log until the test ends.
func Follow[S fleet.Source](tb testing.TB, open func(log *testkit.Log) (S, error)) (*Following, S) {
	tb.Helper()
	f := Watching(tb, new(fleet.Store))
	src, err := open(f.Log)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan error, 1)
	go func() { done <- f.Store.Run(ctx, src) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("Watch: %v", err)
		}
	})
	return f, src
}

// Watching is for a store that the test itself has filled.
func Watching(tb testing.TB, store *fleet.Store) *Following {
	tb.Helper()
	return &Following{Store: store, Log: new(testkit.Log), tb: tb}
}

// Until waits for something to come of the backend's work.
func (f *Following) Until(what string, is func() bool) {
	f.tb.Helper()
	testkit.Until(f.tb, what, is, func() string { return "fleet " + strings.Join(f.Statuses(), ", ") }, f.Log.String)
}

// IDs returns the workers' IDs.
func (f *Following) IDs() []string {
	var out []string
	for _, w := range f.Store.Snapshot().Workers {
		out = append(out, w.ID)
	}
	return out
}

// Statuses returns the workers, each as "id status".
func (f *Following) Statuses() []string {
	var out []string
	for _, w := range f.Store.Snapshot().Workers {
		out = append(out, w.ID+" "+w.Status.String())
	}
	return out
}

// Want waits until the fleet is complete and of the given workers, each an ID, or
// an ID and a status as in "w:1 ACTIVE".
func (f *Following) Want(what string, workers ...string) {
	f.tb.Helper()
	f.Until(what, func() bool {
		return f.Store.Synced() && (slices.Equal(f.IDs(), workers) || slices.Equal(f.Statuses(), workers))
	})
}
