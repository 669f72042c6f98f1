package assemble_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/internal/assemble"
)

// TestAProgramThatDrainsIsNotReady: a probe of the operator's port must look
// away as soon as one of the client's port does.
func TestAProgramThatDrainsIsNotReady(t *testing.T) {
	c := core(t)
	ctx, cancel := context.WithCancel(t.Context())
	ready := c.Ready(ctx)
	if ready() == nil {
		t.Error("ready though the fleet is not known")
	}
	fleet.NewFeed(c.Store).Replace(nil)
	if err := ready(); err != nil {
		t.Errorf("not ready though the fleet is known: %v", err)
	}
	cancel()
	if ready() == nil {
		t.Error("ready though the program drains")
	}
}

const childFleet = "POINTSMAN_TEST_CHILD_FLEET"

// TestMain makes the test's own binary the program that
// TestASecondSignalEndsADrain starts.
func TestMain(m *testing.M) {
	file := os.Getenv(childFleet)
	if file == "" {
		os.Exit(m.Run())
	}
	os.Args = []string{"epp", "--discovery-backend", "static", "--static-file", file, "--kv-event-transport", "none"}
	assemble.Main(config.EPP, func(ctx context.Context, _ *assemble.Core) error {
		fmt.Println("serving")
		<-ctx.Done()
		fmt.Println("draining")
		select {} // a stream that never ends
	})
}

func TestASecondSignalEndsADrain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(file, []byte(fleetFile), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childFleet+"="+file)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	for _, want := range []string{"serving\n", "draining\n"} {
		if got, err := lines.ReadString('\n'); got != want {
			t.Fatalf("the child says %q (%v), want %q", got, err, want)
		}
		if err := child.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = io.Copy(io.Discard, lines)
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("the child ended with %v, want to be ended by the second signal", err)
	}
}
