package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary play the parent of TestChildrenDieWithTheirParent.
func TestMain(m *testing.M) {
	if dir := os.Getenv("STACK_TEST_PARENT"); dir != "" {
		p, err := startProcess(dir, "child", nil, "sleep", "600")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		select {} // until killed
	}
	os.Exit(m.Run())
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := startProcess(t.TempDir(), "child", []string{"GREETING=hello"}, "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestAProcessThatEndsByItselfIsAnErrorWithItsLog(t *testing.T) {
	p := start(t, "echo $GREETING; echo broken >&2; exit 3")
	<-p.Done()
	err := p.Err()
	if !errors.Is(err, ErrExited) || p.Running() {
		t.Fatalf("error %v, want %v", err, ErrExited)
	}
	for _, want := range []string{"child", "exit status 3", "| hello", "| broken", p.Log} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q:\n%v", want, err)
		}
	}
}

func TestAnEndThatWasAskedForIsNoError(t *testing.T) {
	p := start(t, "sleep 600")
	if p.Err() != nil || !p.Running() {
		t.Fatalf("just started: running %v, error %v", p.Running(), p.Err())
	}
	p.Kill()
	if p.Err() != nil || p.Running() {
		t.Errorf("after Kill: running %v, error %v", p.Running(), p.Err())
	}
	p.Kill() // again does nothing
}

func TestAskingADeadProcessToEndDoesNotHideThatItDied(t *testing.T) {
	p := start(t, "exit 1")
	<-p.Done()
	if err := p.Stop(time.Second); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if p.Err() == nil {
		t.Error("the death before Stop is forgotten")
	}
}

func TestStopIsPatientThenKills(t *testing.T) {
	orderly := start(t, `trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done`)
	waitForLog(t, orderly, "\nup")
	if err := orderly.Stop(10 * time.Second); err != nil {
		t.Errorf("an orderly process: %v", err)
	}
	waitForLog(t, orderly, "\nbye")

	deaf := start(t, `trap '' TERM; echo up; while :; do sleep 0.01; done`)
	waitForLog(t, deaf, "\nup")
	err := deaf.Stop(50 * time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "was killed") || deaf.Running() {
		t.Errorf("a process that ignores SIGTERM: error %v, running %v", err, deaf.Running())
	}
}

func waitForLog(t *testing.T, p *Process, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := Until(ctx, "the log", func(context.Context) error {
		if raw, err := os.ReadFile(p.Log); err != nil || !strings.Contains(string(raw), text) {
			return fmt.Errorf("no %q in %q: %w", text, raw, errors.Join(err, errNotReady))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestChildrenDieWithTheirParent(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "STACK_TEST_PARENT="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || syscall.Kill(child, 0) != nil {
		t.Fatalf("child %q: %v", line, err)
	}
	if err = parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = Until(ctx, "the child's end", func(context.Context) error {
		stat, gone := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat")
		_, state, _ := strings.Cut(string(stat), ") ")
		if gone == nil && !strings.HasPrefix(state, "Z") { // a zombie is dead with nobody to reap it
			return errNotReady
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestWaitingEndsWithTheProcessWaitedFor(t *testing.T) {
	p := start(t, "exit 7")
	err := Until(t.Context(), "the impossible", func(context.Context) error { return io.EOF }, p)
	if !errors.Is(err, ErrExited) {
		t.Errorf("error %v, want %v", err, ErrExited)
	}
}

func TestWaitingEndsWithItsContextAndSaysWhatWasMissing(t *testing.T) {
	p := start(t, "echo alive; sleep 600")
	waitForLog(t, p, "\nalive")
	why := errors.New("out of time")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	err := Until(ctx, "the impossible", func(context.Context) error { return io.EOF }, p)
	if !errors.Is(err, why) || !errors.Is(err, io.EOF) || !strings.Contains(err.Error(), "| alive") {
		t.Errorf("error %v, want the cause, the last look's error and the log", err)
	}
}

func TestAServiceCanBeStartedAgain(t *testing.T) {
	s := &Service{
		Name: "again", dir: t.TempDir(), argv: []string{"sleep", "600"},
		ready: func(context.Context) error { return nil },
	}
	if err := s.Stop(time.Second); err != nil {
		t.Errorf("Stop before Start: %v", err)
	}
	for range 2 {
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Kill()
		if err := s.Process().Err(); err != nil {
			t.Error(err)
		}
	}
}

func TestAMissingProgramIsAnError(t *testing.T) {
	if _, err := startProcess(t.TempDir(), "nothing", nil, "/no/such/program"); err == nil {
		t.Error("no error")
	}
}
