package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// tailBytes is how much of a log an error quotes.
const tailBytes = 4 << 10

// Process is one supervised child. Its methods are safe for concurrent use.
type Process struct {
	Name string // what it is called in errors and in its log's name
	Log  string // path of the file with its stdout and stderr

	cmd  *exec.Cmd
	done chan struct{}

	mu      sync.Mutex
	expect  bool // its end was asked for
	waitErr error
}

// ErrExited is wrapped by errors about a process that ended by itself.
var ErrExited = errors.New("process exited by itself")

// startProcess runs argv with its output appended to dir/name.log.
func startProcess(dir, name string, env []string, argv ...string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	file, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // in the stack's own directory
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	defer file.Close()
	fmt.Fprintf(file, "$ %s\n", strings.Join(argv, " "))

	p.cmd = exec.Command(argv[0], argv[1:]...) //nolint:gosec,noctx // the caller's own programs; ended by Stop and Kill, which also reap
	p.cmd.Stdout, p.cmd.Stderr = file, file
	p.cmd.Env = append(os.Environ(), env...)
	// A group of its own keeps Ctrl-C away from it: the stack ends it in order.
	// Pdeathsig ends it when the stack's process dies without doing so.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// run starts the child and waits for it on one locked thread: the kernel sends
// Pdeathsig when the thread that started the child ends, not the process.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	err := p.cmd.Wait()
	p.mu.Lock()
	p.waitErr = err
	p.mu.Unlock()
	close(p.done)
}

// PID returns the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the child has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Err is nil while the child runs and after an end that was asked for.
// Otherwise it says how the child ended, with the tail of its log.
func (p *Process) Err() error {
	if p.Running() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.expect {
		return nil
	}
	how := "exit status 0"
	if p.waitErr != nil {
		how = p.waitErr.Error()
	}
	return fmt.Errorf("%s: %w: %s\n%s", p.Name, ErrExited, how, p.Tail())
}

// Kill sends SIGKILL and waits for the end, as a machine that loses power would
// end it: nothing is drained or deregistered.
func (p *Process) Kill() { p.end(syscall.SIGKILL, 0) }

// Pause stops the child in its tracks with SIGSTOP: its connections stay open and
// silent. Resume lets it go on. Neither does anything to a child that has ended.
func (p *Process) Pause() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume ends what Pause began.
func (p *Process) Resume() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// Stop sends SIGTERM, waits up to patience for an orderly end, then kills. It
// returns an error if it had to kill.
func (p *Process) Stop(patience time.Duration) error {
	if p.end(syscall.SIGTERM, patience) {
		return nil
	}
	p.end(syscall.SIGKILL, 0)
	return fmt.Errorf("%s did not end within %v of SIGTERM and was killed\n%s", p.Name, patience, p.Tail())
}

// end sends sig and reports whether the child ended within patience; 0 waits
// for as long as it takes.
func (p *Process) end(sig syscall.Signal, patience time.Duration) bool {
	p.mu.Lock()
	p.expect = p.expect || p.Running()
	p.mu.Unlock()
	// The only error is that it has ended already.
	_ = p.cmd.Process.Signal(sig)
	if patience == 0 {
		<-p.done
		return true
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}

// Tail returns the end of the child's log, indented, for error messages.
func (p *Process) Tail() string {
	raw, err := os.ReadFile(p.Log)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	if len(raw) > tailBytes {
		raw = raw[len(raw)-tailBytes:]
	}
	text := strings.TrimRight(string(raw), "\n")
	return "  log " + p.Log + ":\n  | " + strings.ReplaceAll(text, "\n", "\n  | ")
}

// ExitError returns how the child ended, whether or not that was asked for; nil
// for exit status 0 and while it runs.
func (p *Process) ExitError() error {
	if p.Running() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waitErr != nil {
		return fmt.Errorf("%s: %w\n%s", p.Name, p.waitErr, p.Tail())
	}
	return nil
}
