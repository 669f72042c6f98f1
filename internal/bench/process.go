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
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// process is one that is measured: a program of ours, or this one as a child.
type process struct {
	name    string
	addr    string // where requests go
	metrics string // host:port of Go metrics; "" for none
	pid     int
	cmd     *exec.Cmd
	end     func()        // asks it to end
	exited  chan struct{} // closed when it has
}

// startProgram runs cmd, which listens where it was told to.
func startProgram(name string, cmd *exec.Cmd, addr, metrics string) (*process, error) {
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &process{name: name, addr: addr, metrics: metrics, pid: cmd.Process.Pid, cmd: cmd}
	p.end = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
	return p.watch(), nil
}

// childAt is what a child says of itself.
type childAt struct {
	Addr    string `json:"addr"`
	Metrics string `json:"metrics"`
}

// startChild runs this program, called as self, as the child of that name: see beChild.
func startChild(ctx context.Context, self []string, log io.Writer, name string, args ...string) (*process, error) {
	var at childAt
	p, err := startSelf(ctx, append(append(append([]string{}, self...), name), args...), log, &at)
	if err != nil {
		return nil, err
	}
	p.name, p.addr, p.metrics = name, at.Addr, at.Metrics
	return p, nil
}

// startSelf runs this program with args and reads the line of JSON by which it says
// where it is into at. It ends with its standard input.
func startSelf(ctx context.Context, args []string, log io.Writer, at any) (*process, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, args...) //nolint:gosec // this program
	cmd.Stderr = log
	cmd.WaitDelay = time.Second
	in, err := cmd.StdinPipe()
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
	p := &process{name: "this program", pid: cmd.Process.Pid, cmd: cmd, end: func() { _ = in.Close() }}
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, at)
	}
	p.watch() // reads of its output are done
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("the other process did not say where it listens: %w", err)
	}
	return p, nil
}

// beChild is this program as a measured server: it tells the parent where it and its
// Go metrics are, and serves until standard input ends, as it does with the parent.
func beChild(ctx context.Context, out io.Writer, serve func(context.Context, net.Listener) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	metrics, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	if err = reg.Register(collectors.NewGoCollector()); err != nil {
		return err
	}
	web := &http.Server{Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{}), ReadHeaderTimeout: time.Minute}
	go func() { _ = web.Serve(metrics) }() // ends with Close
	defer web.Close()
	if err = PrintJSON(out, childAt{Addr: lis.Addr().String(), Metrics: metrics.Addr().String()}); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err = serve(ctx, lis); ctx.Err() != nil {
		return nil // it was told to end
	}
	return err
}

// watch notices the end of the process.
func (p *process) watch() *process {
	p.exited = make(chan struct{})
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // how it ended is of no interest: it has been measured, or was no use
	}()
	return p
}

// stop ends the process and waits for it.
func (p *process) stop() {
	p.end()
	timer := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	<-p.exited
}

// usage is what a process has used for some work.
type usage struct {
	cpu    time.Duration
	allocs float64 // heap objects; 0 of a process without metrics
}

// used returns what the process uses for work. What the reading of its metrics
// allocates is measured before, and taken off: it is some thousand objects, which
// would be ten for each of a few hundred requests.
func (p *process) used(ctx context.Context, work func() error) (u usage, err error) {
	var reads [3]float64
	for i := range 2 {
		if reads[i], err = p.allocations(ctx); err != nil {
			return u, err
		}
	}
	before, err := ProcessCPUTime(p.pid)
	if err != nil {
		return u, err
	}
	if err = work(); err != nil {
		return u, fmt.Errorf("%s: %w", p.name, err)
	}
	after, err := ProcessCPUTime(p.pid)
	if err != nil {
		return u, err
	}
	if reads[2], err = p.allocations(ctx); err != nil {
		return u, err
	}
	reading := reads[1] - reads[0]
	return usage{cpu: after - before, allocs: reads[2] - reads[1] - reading}, nil
}

// allocations returns how many heap objects the process has allocated so far.
func (p *process) allocations(ctx context.Context) (float64, error) {
	if p.metrics == "" {
		return 0, nil
	}
	return p.metric(ctx, "go_memstats_mallocs_total")
}

// metric returns the value of a series, named with its labels.
func (p *process) metric(ctx context.Context, metric string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.metrics+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s: metrics: %w", p.name, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), metric+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s on %s", p.name, metric, p.metrics)
}

// await asks ready until it reports true, within startTimeout.
func (p *process) await(ctx context.Context, ready func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ready(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not serving: %w", p.name, ctx.Err())
		case <-p.exited:
			return fmt.Errorf("%s is not serving: %w", p.name, errEnded)
		}
	}
	return nil
}

// startTimeout is how long a server may take to be ready.
const startTimeout = 30 * time.Second

var errEnded = errors.New("it has ended")

// freePorts returns ports that were free a moment ago.
func freePorts(ctx context.Context, n int) ([]string, error) {
	var ports []string
	for range n {
		lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer lis.Close()
		_, port, err := net.SplitHostPort(lis.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
