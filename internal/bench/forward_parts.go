package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// forwardPart is a process that answers requests.
type forwardPart struct {
	name    string
	addr    string // where requests go
	worker  string // the ID that requests name
	metrics string // host:port of Go metrics; "" has none
	pid     int
	end     func()
}

// processUsage is what a process has used since it began.
type processUsage struct {
	cpu    time.Duration
	allocs float64 // heap objects; 0 for a process without metrics
}

// used reads the part's usage.
func (p *forwardPart) used(ctx context.Context) (u processUsage, err error) {
	if p.metrics != "" {
		server := extProcServer{name: p.name, metrics: p.metrics}
		if u.allocs, err = server.allocations(ctx); err != nil {
			return u, err
		}
	}
	u.cpu, err = ProcessCPUTime(p.pid)
	return u, err
}

func (rig *forwardRig) stop() {
	for _, p := range []*forwardPart{rig.forwarder, rig.reference, rig.worker} {
		if p != nil {
			p.end()
		}
	}
}

// startForwardRig starts the worker, then what stands before it.
func startForwardRig(ctx context.Context, cfg forwardConfig, self []string, dir string, log io.Writer) (*forwardRig, error) {
	rig := &forwardRig{log: log}
	var err error
	if rig.worker, err = startForwardSelf(ctx, self, log, childWorker); err == nil {
		rig.worker.worker = rig.worker.addr
		rig.reference, err = startForwardSelf(ctx, self, log, childReference, rig.worker.addr)
	}
	if err == nil {
		rig.reference.worker = rig.worker.addr
		rig.forwarder, err = startForwarder(ctx, cfg.forwarder, rig.worker.addr, dir, log)
	}
	if err != nil {
		rig.stop()
		return nil, err
	}
	return rig, nil
}

// startForwardSelf runs this program as one of the parts.
func startForwardSelf(ctx context.Context, self []string, log io.Writer, args ...string) (*forwardPart, error) {
	var at struct {
		Worker string `json:"worker"`
		PID    int    `json:"pid"`
	}
	stop, err := startSelf(ctx, append(append([]string{}, self...), args...), log, &at)
	if err != nil {
		return nil, err
	}
	return &forwardPart{name: args[0], addr: at.Worker, pid: at.PID, end: stop}, nil
}

// startSelf runs this program with args, reads the line of JSON by which it says
// where it is into at, and returns how to end it.
func startSelf(ctx context.Context, args []string, log io.Writer, at any) (stop func(), err error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // this program
	cmd.Stderr = log
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe() // the child ends with it
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { _ = in.Close(); _ = cmd.Wait() }
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, at)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("the other process did not start: %w", err)
	}
	return stop, nil
}

// startForwarder runs the binary in direct mode with a fleet of one worker.
func startForwarder(ctx context.Context, binary, worker, dir string, log io.Writer) (*forwardPart, error) {
	file := filepath.Join(dir, "fleet.yaml")
	fleet := fmt.Sprintf("workers:\n  - {url: %q, model: %q, engine: vllm, block_size: 16}\n", "http://"+worker, forwardModel)
	if err := os.WriteFile(file, []byte(fleet), 0o600); err != nil {
		return nil, err
	}
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, //nolint:gosec // the caller's own command line names it
		"--discovery-backend", "static", "--static-file", file, "--host", "127.0.0.1",
		"--port", ports[0], "--metrics-port", ports[1], "--router-mode", "direct",
		"--request-transport", "http", "--kv-event-transport", "none", "--drain-delay-s", "0", "--drain-timeout", "1")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	s := (&extProcServer{name: "forwarder", cmd: cmd}).watch()
	p := &forwardPart{
		name: "forwarder", addr: "127.0.0.1:" + ports[0], metrics: "127.0.0.1:" + ports[1],
		worker: worker, pid: cmd.Process.Pid, end: s.stop,
	}
	if err := p.ready(ctx, s.exited); err != nil {
		s.stop()
		return nil, err
	}
	return p, nil
}

// ready waits until the forwarder says that it is.
func (p *forwardPart) ready(ctx context.Context, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/ready", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the forwarder is not ready: %w", ctx.Err())
		case <-exited:
			return errors.New("the forwarder has ended")
		}
	}
}

// forwardRequest is the bytes of one request; what, when it is not empty, tells
// the worker to do something else than answering (forward_worker.go).
func forwardRequest(worker string, stream bool, what string) []byte {
	body := natsUnaryBody
	if stream {
		body = natsStreamBody
	}
	// As long as a short prompt is.
	body = strings.Replace(body, "hello", "hello "+strings.Repeat("and so on ", 30), 1)
	var b strings.Builder
	b.WriteString("POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nX-Worker-Instance-Id: " + worker + "\r\n")
	if what != "" {
		b.WriteString(forwardWhat + ": " + what + "\r\n")
	}
	b.WriteString("Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
	return []byte(b.String())
}

// forwardListen binds a loopback port and tells the parent.
func forwardListen(ctx context.Context, out io.Writer) (net.Listener, error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return lis, PrintJSON(out, map[string]any{"worker": lis.Addr().String(), "pid": os.Getpid()})
}

// forwardChild is this program as the worker or the reference, until standard
// input ends.
func forwardChild(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("which child?")
	}
	var handler http.Handler = newForwardWorker()
	if args[0] == childReference {
		if len(args) < 2 {
			return errors.New("in front of which worker?")
		}
		handler = referenceProxy(args[1])
	}
	lis, err := forwardListen(ctx, out)
	if err != nil {
		return err
	}
	web := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = web.Serve(lis) }() // ends with Close
	defer web.Close()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
