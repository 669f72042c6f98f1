package testkit_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/internal/testkit"
)

// failing is a test that notes how it failed.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestUntilSeesWhatComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		testkit.Until(t, "a moment", func() bool { return time.Since(begin) > 5*time.Second })
		if took := time.Since(begin); took > 5*time.Second+100*time.Millisecond {
			t.Errorf("seen after %v", took)
		}
	})
}

func TestUntilSaysWhatItWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		begin := time.Now()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			testkit.Within(f, 3*time.Second, "the moon", func() bool { return false }, func() string { return "it is new" })
		}()
		<-ended
		if !strings.Contains(f.said, "3s still not: the moon\nit is new") || time.Since(begin) < 3*time.Second {
			t.Errorf("after %v: %q", time.Since(begin), f.said)
		}
	})
}

func TestALogIsHeardFromDebugOn(t *testing.T) {
	var l testkit.Log
	l.Logger().LogAttrs(t.Context(), slog.LevelDebug, "twice")
	l.Logger().LogAttrs(t.Context(), slog.LevelWarn, "twice")
	if l.Count("twice") != 2 || !strings.Contains(l.String(), "level=DEBUG") {
		t.Errorf("heard %q", l.String())
	}
}
