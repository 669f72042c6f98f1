package bench

import (
	"context"
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
	*process
	worker string // the ID that requests name
}

func (rig *forwardRig) stop() {
	for _, p := range []*forwardPart{rig.envoy, rig.forwarder, rig.reference, rig.worker} {
		if p != nil {
			p.stop()
		}
	}
}

const (
	forwardPath = "/v1/chat/completions"
	headerNamed = "X-Worker-Instance-Id"
)

// startForwardRig starts the worker, then what stands before it.
func startForwardRig(ctx context.Context, cfg forwardConfig, self []string, dir string, log io.Writer) (*forwardRig, error) {
	rig := &forwardRig{lean: cfg.lean, log: log}
	start := func(args ...string) (*forwardPart, error) {
		p, err := startChild(ctx, self, log, args[0], args[1:]...)
		if err != nil {
			return nil, err
		}
		part := &forwardPart{process: p}
		if part.worker = p.addr; len(args) > 1 {
			part.worker = args[1]
		}
		return part, nil
	}
	var err error
	if rig.worker, err = start(childWorker); err == nil {
		rig.reference, err = start(childReference, rig.worker.addr)
	}
	if err == nil {
		rig.forwarder, err = startForwarder(ctx, cfg.forwarder, rig.worker.addr, dir, log)
	}
	if err == nil && cfg.envoy != "" {
		rig.envoy, err = startEnvoy(ctx, cfg.envoy, rig.worker.addr, dir, log)
	}
	if err != nil {
		rig.stop()
		return nil, err
	}
	return rig, nil
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
		"--request-transport", "http", "--kv-event-transport", "none", "--drain-delay", "0", "--drain-timeout", "1")
	cmd.Stdout, cmd.Stderr = log, log
	return startPart(ctx, "forwarder", cmd, worker, ports[0], "127.0.0.1:"+ports[1])
}

// startPart runs cmd, which listens at port before the worker, until it says that it is
// ready.
func startPart(ctx context.Context, name string, cmd *exec.Cmd, worker, port, metrics string) (*forwardPart, error) {
	p, err := startProgram(name, cmd, "127.0.0.1:"+port, metrics)
	if err != nil {
		return nil, err
	}
	if err = p.await(ctx, p.saysReady); err != nil {
		p.stop()
		return nil, err
	}
	return &forwardPart{process: p, worker: worker}, nil
}

// saysReady reports whether the process says that it is ready.
func (p *process) saysReady(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/ready", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// forwardBody is a request's body, as long as a short prompt is.
func forwardBody(stream bool) string {
	body := natsUnaryBody
	if stream {
		body = natsStreamBody
	}
	return strings.Replace(body, "hello", "hello "+strings.Repeat("and so on ", 30), 1)
}

// forwardRequest is the bytes of a streamed request that tells the worker to do
// something else than answering: see forwardWhat.
func forwardRequest(worker, what string) []byte {
	body := forwardBody(true)
	return []byte("POST " + forwardPath + " HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n" + headerNamed + ": " + worker +
		"\r\n" + forwardWhat + ": " + what + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// forwardChild is this program as the worker or the reference.
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
	return beChild(ctx, out, func(ctx context.Context, lis net.Listener) error {
		web := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		defer context.AfterFunc(ctx, func() { _ = web.Close() })()
		return web.Serve(lis)
	})
}
