package bench

import (
	"bufio"
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
	"syscall"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"pointsman/breaker"
	"pointsman/extproc"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"
)

// extProcServer is a process that serves ext-proc and Go metrics.
type extProcServer struct {
	name    string
	addr    string // of ext-proc
	metrics string // of /metrics
	pid     int
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the process has ended
}

// watch notices the end of the process.
func (s *extProcServer) watch() *extProcServer {
	s.exited = make(chan struct{})
	go func() {
		defer close(s.exited)
		_ = s.cmd.Wait() // how it ended is of no interest: it has been measured, or was no use
	}()
	return s
}

// stop ends the process and waits for it.
func (s *extProcServer) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(10*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	<-s.exited
}

// allocations returns how many heap objects the process has allocated so far.
func (s *extProcServer) allocations(ctx context.Context) (float64, error) {
	return s.metric(ctx, "go_memstats_mallocs_total")
}

// metric returns the value of a series, named with its labels.
func (s *extProcServer) metric(ctx context.Context, metric string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.metrics+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("%s: metrics: %w", s.name, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), metric+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s: no %s on %s", s.name, metric, s.metrics)
}

// startReference runs the reference server.
func startReference(ctx context.Context, self []string, log io.Writer) (*extProcServer, error) {
	return startChild(ctx, childReference, append(self, childReference), log)
}

// startEPP runs the EPP with a fleet of n workers, and with the tokenizer in a
// directory unless that is "".
func startEPP(ctx context.Context, binary string, self []string, dir string, n int, tokenizer string, log io.Writer) (*extProcServer, error) {
	if binary == "self" {
		return startChild(ctx, childEPP, append(self, childEPP, strconv.Itoa(n)), log)
	}
	file := filepath.Join(dir, fmt.Sprintf("fleet-%d.yaml", n))
	if err := os.WriteFile(file, []byte(fleetFile(n)), 0o600); err != nil {
		return nil, err
	}
	tokens := "auto"
	if tokenizer != "" {
		tokens = "remote" // wanted although there are no KV events
	}
	return startEPPOn(ctx, binary, file, log, "--router-tokenizer-path", tokenizer, "--tokenizer", tokens)
}

// startEPPOn runs the EPP with the fleet that a file names, and further flags.
func startEPPOn(ctx context.Context, binary, file string, log io.Writer, flags ...string) (*extProcServer, error) {
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, append([]string{ //nolint:gosec // the caller's own command line names it
		"--discovery-backend", "static", "--static-file", file, "--host", "127.0.0.1",
		"--grpc-port", ports[0], "--grpc-health-port", ports[1], "--metrics-port", ports[2],
		"--secure-serving=false", "--router-policy", "kv-aware", "--kv-event-transport", "none",
		"--drain-delay-s", "0",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	s := (&extProcServer{
		name: "epp", addr: "127.0.0.1:" + ports[0], metrics: "127.0.0.1:" + ports[2],
		pid: cmd.Process.Pid, cmd: cmd,
	}).watch()
	return s, s.whenServing(ctx)
}

func startChild(ctx context.Context, name string, args []string, log io.Writer) (*extProcServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, args...) //nolint:gosec // this program itself
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s := &extProcServer{name: name, pid: cmd.Process.Pid, cmd: cmd}
	_, err = fmt.Fscan(out, &s.addr, &s.metrics)
	s.watch() // reads of its output are done
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("%s did not say where it listens: %w", name, err)
	}
	return s, s.whenServing(ctx)
}

// startTimeout is how long a server may take to be ready.
const startTimeout = 30 * time.Second

// whenServing waits until the server's health says SERVING, and stops it if
// that does not come.
func (s *extProcServer) whenServing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer conn.Close()
		err = s.awaitServing(ctx, healthpb.NewHealthClient(conn))
	}
	if err != nil {
		s.stop()
		return fmt.Errorf("%s is not serving: %w", s.name, err)
	}
	return nil
}

func (s *extProcServer) awaitServing(ctx context.Context, client healthpb.HealthClient) error {
	for {
		r, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: extproc.ServiceName})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			return nil
		}
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		case <-s.exited:
			return errors.New("it has ended")
		}
		pause.Stop()
	}
}

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

func benchWorkers(n int) []*fleet.Worker {
	workers := make([]*fleet.Worker, n)
	for i := range workers {
		host := fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)
		workers[i] = &fleet.Worker{
			ID: host + ":30000", URL: "http://" + host + ":30000", Host: host, Port: 30000,
			Model: extProcModel, Engine: fleet.VLLM, BlockSize: 16, DPRank: -1, Transport: "http",
		}
	}
	return workers
}

// fleetFile is benchWorkers in the format of the static backend.
func fleetFile(n int) string {
	var b strings.Builder
	b.WriteString("workers:\n")
	for _, w := range benchWorkers(n) {
		fmt.Fprintf(&b, "  - {url: %q, model: %q, engine: %s, block_size: %d}\n", w.URL, w.Model, w.Engine, w.BlockSize)
	}
	return b.String()
}

// extProcChild is this program as one of the measured servers: it prints where
// it listens and serves until it is told to stop.
func extProcChild(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("which child?")
	}
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
	go func() { _ = web.Serve(metrics) }()
	defer web.Close()
	if _, err = fmt.Fprintln(out, lis.Addr(), metrics.Addr()); err != nil {
		return err
	}
	if args[0] == childReference {
		return serveReference(ctx, lis)
	}
	n := 8
	if len(args) > 1 {
		if n, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	return serveSelf(ctx, lis, n)
}

func serveReference(ctx context.Context, lis net.Listener) error {
	srv := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	extprocv3.RegisterExternalProcessorServer(srv, referenceServer{})
	healthpb.RegisterHealthServer(srv, alwaysServing{})
	stop := context.AfterFunc(ctx, srv.Stop)
	defer stop()
	return srv.Serve(lis)
}

type alwaysServing struct {
	healthpb.UnimplementedHealthServer
}

// Check says SERVING.
func (alwaysServing) Check(context.Context, *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// serveSelf wires the EPP's rooms for a fixed fleet of n workers.
func serveSelf(ctx context.Context, lis net.Listener, n int) error {
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace(benchWorkers(n))
	pick, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
	if err != nil {
		return err
	}
	cfg := extproc.DefaultConfig()
	cfg.Secure, cfg.DrainDelay = false, 0
	srv, err := extproc.New(cfg, extproc.Deps{
		Picker: pick, Preparer: prompt.NewPreparer(prompt.DefaultConfig(), nil), Store: store,
	})
	if err != nil {
		return err
	}
	return srv.Serve(ctx, lis, nil)
}
