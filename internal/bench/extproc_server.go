package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
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

// startReference runs the reference server.
func startReference(ctx context.Context, self []string, log io.Writer) (*process, error) {
	p, err := startChild(ctx, self, log, childReference)
	if err != nil {
		return nil, err
	}
	return p, p.whenServing(ctx)
}

// startEPP runs the EPP with a fleet of n workers, and with the tokenizer in a
// directory unless that is "".
func startEPP(ctx context.Context, binary string, self []string, dir string, n int, tokenizer string, log io.Writer) (*process, error) {
	if binary == "self" {
		p, err := startChild(ctx, self, log, childEPP, strconv.Itoa(n))
		if err != nil {
			return nil, err
		}
		return p, p.whenServing(ctx)
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
func startEPPOn(ctx context.Context, binary, file string, log io.Writer, flags ...string) (*process, error) {
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, append([]string{ //nolint:gosec // the caller's own command line names it
		"--discovery-backend", "static", "--static-file", file, "--host", "127.0.0.1",
		"--grpc-port", ports[0], "--grpc-health-port", ports[1], "--metrics-port", ports[2],
		"--secure-serving=false", "--router-policy", "kv-aware", "--kv-event-transport", "none",
		"--drain-delay", "0",
	}, flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	p, err := startProgram("epp", cmd, "127.0.0.1:"+ports[0], "127.0.0.1:"+ports[2])
	if err != nil {
		return nil, err
	}
	return p, p.whenServing(ctx)
}

// whenServing waits until the server's health says SERVING, and stops it if
// that does not come.
func (p *process) whenServing(ctx context.Context) error {
	conn, err := grpc.NewClient(p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		defer conn.Close()
		client := healthpb.NewHealthClient(conn)
		err = p.await(ctx, func(ctx context.Context) bool {
			r, failed := client.Check(ctx, &healthpb.HealthCheckRequest{Service: extproc.ServiceName})
			return failed == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
		})
	}
	if err != nil {
		p.stop()
	}
	return err
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

// extProcChild is this program as one of the measured servers.
func extProcChild(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("which child?")
	}
	if args[0] == childReference {
		return beChild(ctx, out, serveReference)
	}
	n := 8
	if len(args) > 1 {
		var err error
		if n, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	return beChild(ctx, out, func(ctx context.Context, lis net.Listener) error { return serveSelf(ctx, lis, n) })
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
