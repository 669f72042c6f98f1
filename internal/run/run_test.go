package run_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"pointsman/internal/run"
)

func TestAFailingPartStopsTheOthers(t *testing.T) {
	g := run.New(t.Context())
	boom := errors.New("boom")
	stopped := make(chan struct{})
	g.Go("waiter", func(ctx context.Context) error {
		<-ctx.Done()
		close(stopped)
		return context.Cause(ctx)
	})
	g.Go("failer", func(context.Context) error { return boom })
	err := g.Wait()
	<-stopped
	if !errors.Is(err, boom) {
		t.Fatalf("Wait() = %v, want it to wrap boom", err)
	}
	if want := "failer: boom"; !strings.Contains(err.Error(), want) {
		t.Errorf("Wait() = %q, want it to name the part: %q", err, want)
	}
}

func TestStopIsNotAnError(t *testing.T) {
	g := run.New(t.Context())
	g.Go("waiter", func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	g.Stop()
	if err := g.Wait(); err != nil {
		t.Errorf("Wait() = %v, want nil", err)
	}
}

func TestAPartThatEndsWellStopsNobody(t *testing.T) {
	g := run.New(t.Context())
	g.Go("short", func(context.Context) error { return nil })
	released := make(chan struct{})
	g.Go("long", func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			t.Error("the group stopped because a part ended without an error")
		case <-released:
		}
		return nil
	})
	close(released)
	if err := g.Wait(); err != nil {
		t.Errorf("Wait() = %v, want nil", err)
	}
}
