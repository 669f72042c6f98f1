package giecompat

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"

	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

const (
	namespace = "serving"
	poolName  = "vllm-llama3-8b-instruct"
	model     = "my-model"
)

var pools = testfleet.KubeResource{Group: "inference.networking.k8s.io", Version: "v1", Plural: "inferencepools", Kind: "InferencePool"}

var (
	building sync.Once
	built    string
	buildErr error
)

// binary is the real endpoint picker: that of POINTSMAN_BIN, else one made now.
func binary(t *testing.T) string {
	t.Helper()
	building.Do(func() {
		if dir := os.Getenv("POINTSMAN_BIN"); dir != "" {
			built = filepath.Join(dir, "epp")
			return
		}
		dir, err := os.MkdirTemp("", "giecompat") //nolint:usetesting // it outlives the test that makes it
		if err != nil {
			buildErr = err
			return
		}
		built = filepath.Join(dir, "epp")
		cmd := exec.Command("go", "build", "-o", built, "./cmd/epp")
		cmd.Dir = "../.."
		var said bytes.Buffer
		cmd.Stderr = &said
		if buildErr = cmd.Run(); buildErr != nil {
			t.Log(said.String())
		}
	})
	if buildErr != nil {
		t.Fatal(buildErr)
	}
	return built
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" && os.Getenv("POINTSMAN_BIN") == "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(code)
}

// world is a picker of a pool whose Pods are at the given addresses.
type world struct {
	t      *testing.T
	conn   *grpc.ClientConn
	port   int
	pods   []string
	kube   *testfleet.Kube
	output *bytes.Buffer
}

func object(fields ...any) map[string]any {
	out := map[string]any{}
	for i := 0; i < len(fields); i += 2 {
		out[fields[i].(string)] = fields[i+1]
	}
	return out
}

func newWorld(t *testing.T, pods ...string) *world {
	t.Helper()
	k := testfleet.StartKube(t)
	k.Install(pools)
	k.Put(t, pools, object("metadata", object("namespace", namespace, "name", poolName), "spec", object(
		"selector", object("matchLabels", object("app", poolName)), "targetPorts", []any{object("number", 8000)},
		"endpointPickerRef", object("name", "epp", "port", object("number", 9002)))))
	for i, ip := range pods {
		p := testfleet.WorkerPod(namespace, "pod-"+strconv.Itoa(i), "x", "")
		p.Labels = map[string]string{"app": poolName}
		p.Status.PodIP = ip
		k.PutPod(t, p)
	}
	w := &world{t: t, pods: pods, kube: k, output: new(bytes.Buffer)}
	w.start(k.Kubeconfig(t, ""))
	return w
}

// start runs the picker with the flags of the other one's manifests.
func (w *world) start(kubeconfig string) {
	w.t.Helper()
	var err error
	if w.port, err = integration.GetFreePort(); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary(w.t), "--pool-name", poolName, "--pool-namespace", namespace, "--zap-encoder", "json", "-v=4",
		"--grpc-port", strconv.Itoa(w.port), "--grpc-health-port", "0", "--metrics-port", "0", "--secure-serving=false",
		"--kubeconfig", kubeconfig, "--kv-event-transport", "none", "--model-rewrite-header", "--drain-delay", "0", "--drain-timeout", "1")
	cmd.Stderr, cmd.Stdout = w.output, w.output
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	if err = cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
		if w.t.Failed() {
			w.t.Logf("the picker said:\n%s", w.output)
		}
	})
	w.conn, err = grpc.NewClient(net.JoinHostPort("127.0.0.1", strconv.Itoa(w.port)), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = w.conn.Close() })
	w.awaitReady()
}

// awaitReady asks for health under each of the names that are in use.
func (w *world) awaitReady() {
	w.t.Helper()
	client := healthpb.NewHealthClient(w.conn)
	for _, name := range []string{"", "liveness", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		testkit.Until(w.t, fmt.Sprintf("health %q", name), func() bool {
			ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
			defer cancel()
			r, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: name}, grpc.WaitForReady(true))
			return err == nil && r.GetStatus() == healthpb.HealthCheckResponse_SERVING
		})
	}
}

// ask sends messages on a stream of its own and returns the answers, of which it
// waits for the given number.
func (w *world) ask(answers int, messages ...*extprocv3.ProcessingRequest) []*extprocv3.ProcessingResponse {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	stream, err := extprocv3.NewExternalProcessorClient(w.conn).Process(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := integration.StreamedRequest(w.t, stream, messages, answers)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(out) != answers {
		w.t.Fatalf("%d answers, want %d: %v", len(out), answers, out)
	}
	return out
}

func discard() logr.Logger { return logr.Discard() }

// routed checks an answer to request headers: the destination is one of those
// wanted, the same in header and metadata. It returns it, and the headers set.
func (w *world) routed(r *extprocv3.ProcessingResponse, want ...string) (string, map[string]string) {
	w.t.Helper()
	mutation := r.GetRequestHeaders().GetResponse().GetHeaderMutation()
	if mutation == nil {
		w.t.Fatalf("got %v, want an answer to the request headers", r)
	}
	set := map[string]string{}
	for _, h := range mutation.GetSetHeaders() {
		set[strings.ToLower(h.GetHeader().GetKey())] = string(h.GetHeader().GetRawValue())
	}
	const key = "x-gateway-destination-endpoint"
	named := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()[key].GetStringValue()
	if set[key] != named {
		w.t.Errorf("the header says %q, the metadata %q", set[key], named)
	}
	if !slices.Contains(want, named) {
		w.t.Errorf("went to %q, want one of %q", named, want)
	}
	return named, set
}

// refused checks for an immediate answer of a status.
func (w *world) refused(r *extprocv3.ProcessingResponse, status int) {
	w.t.Helper()
	if got := int(r.GetImmediateResponse().GetStatus().GetCode()); got != status {
		w.t.Errorf("got %v, want status %d", r, status)
	}
}
