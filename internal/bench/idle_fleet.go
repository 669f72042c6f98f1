package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"

	"pointsman/extproc"
	httpreports "pointsman/plugins/reports/http"
	"pointsman/reports"
)

// idlePage returns what an engine without requests says of itself: the series that a
// picker reads, among as many others that it has to skip as engines have.
func idlePage() string {
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, "vllm:request_time_bucket{model_name=%q,le=\"%d\"} 0\n", extProcModel, i)
	}
	fmt.Fprintf(&b, "vllm:num_requests_running{model_name=%[1]q} 0\nvllm:num_requests_waiting{model_name=%[1]q} 0\nvllm:kv_cache_usage_perc{model_name=%[1]q} 0\n", extProcModel)
	return b.String()
}

// engineKeepAlive is how long engines keep an idle connection (uvicorn's default,
// which vLLM and SGLang leave as it is).
const engineKeepAlive = 5 * time.Second

// idleFleet is a number of engines that have nothing to do, each at an address of
// its own with a publisher of KV events, and the forwarders beside them, which report
// that.
type idleFleet struct {
	port       int // of every engine
	eventPort  int // of every engine's publisher
	reportPort int // of every forwarder
	hosts      []string
	forwarders map[string]*idleForwarder // by worker
	servers    []*http.Server
	publishers []zmq4.Socket
	stop       context.CancelFunc
	wg         sync.WaitGroup
}

// idleForwarder is what a forwarder has of load reports, and no more of one.
type idleForwarder struct {
	*reports.Tally

	hub *httpreports.Hub
}

// startIdleFleet makes n engines; each has a forwarder if reporting.
func startIdleFleet(ctx context.Context, n int, reporting bool) (*idleFleet, error) {
	ctx, stop := context.WithCancel(ctx)
	f := &idleFleet{stop: stop, forwarders: map[string]*idleForwarder{}}
	for i := range n {
		host := fmt.Sprintf("127.1.%d.%d", i/250, 1+i%250)
		f.hosts = append(f.hosts, host)
		if err := f.serve(ctx, host, &f.port, idleEngine()); err != nil {
			f.close()
			return nil, err
		}
		if err := f.publish(ctx, host); err != nil {
			f.close()
			return nil, err
		}
		forwarder := http.NotFoundHandler()
		if reporting {
			forwarder = f.forwarder(ctx, i, f.id(i))
		}
		if err := f.serve(ctx, host, &f.reportPort, forwarder); err != nil {
			f.close()
			return nil, err
		}
	}
	return f, nil
}

// id is the worker ID of an engine.
func (f *idleFleet) id(i int) string { return net.JoinHostPort(f.hosts[i], strconv.Itoa(f.port)) }

// serve serves h at host and a port, which it chooses if that is 0.
func (f *idleFleet) serve(ctx context.Context, host string, port *int, h http.Handler) error {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(*port)))
	if err != nil {
		return fmt.Errorf("a worker's address: %w", err)
	}
	addr, ok := lis.Addr().(*net.TCPAddr)
	if !ok {
		return errors.New("a listener without a TCP address")
	}
	*port = addr.Port
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, IdleTimeout: engineKeepAlive}
	f.servers = append(f.servers, srv)
	f.wg.Go(func() { _ = srv.Serve(lis) })
	return nil
}

// publish opens an engine's publisher, which has nothing to tell.
func (f *idleFleet) publish(ctx context.Context, host string) error {
	sock := zmq4.NewPub(ctx, zmq4.WithLogger(stdlog.New(io.Discard, "", 0))) //nolint:forbidigo // the library wants one, and this one is silent
	f.publishers = append(f.publishers, sock)
	if err := sock.Listen("tcp://" + net.JoinHostPort(host, strconv.Itoa(f.eventPort))); err != nil {
		return fmt.Errorf("a publisher's address: %w", err)
	}
	addr, ok := sock.Addr().(*net.TCPAddr)
	if !ok {
		return errors.New("a publisher without a TCP address")
	}
	f.eventPort = addr.Port
	return nil
}

func idleEngine() http.Handler {
	page := []byte(idlePage())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) })
	return mux
}

func (f *idleFleet) forwarder(ctx context.Context, i int, worker string) http.Handler {
	fw := &idleForwarder{Tally: reports.NewTally(reports.DefaultConfig(), fmt.Sprintf("forwarder-%d", i))}
	fw.hub = httpreports.NewHub(func(worker string) { fw.Know(time.Now(), worker) }, fw.Idle)
	fw.SetPickers(fw.hub.Pickers)
	f.forwarders[worker] = fw
	f.wg.Go(func() { _ = fw.Run(ctx, fw.hub.Publish) })
	mux := http.NewServeMux()
	mux.Handle(httpreports.Path, fw.hub)
	return mux
}

func (f *idleFleet) close() {
	f.stop()
	for _, s := range f.servers {
		_ = s.Close()
	}
	for _, s := range f.publishers {
		_ = s.Close()
	}
	f.wg.Wait()
}

// file is the fleet in the format of the static backend.
func (f *idleFleet) file() string {
	var b strings.Builder
	b.WriteString("workers:\n")
	for i := range f.hosts {
		fmt.Fprintf(&b, "  - {url: %q, model: %q, engine: vllm, block_size: 16, kv_events: \"tcp://%s:%d\"}\n", "http://"+f.id(i), extProcModel, f.hosts[i], f.eventPort)
	}
	return b.String()
}

// answered plays the forwarder of the worker that a request went to: it reports the
// first token and the end of a response of the given tokens.
func (f *idleFleet) answered(route map[string]string, tokens int) error {
	worker := route[extproc.HeaderWorker]
	fw := f.forwarders[worker]
	if fw == nil {
		return fmt.Errorf("a request went to %q, which is no worker", worker)
	}
	p := reports.ParsePick(route[reports.Header])
	if p.Picker == "" {
		return errors.New("the EPP does not name its pick to the forwarder")
	}
	now := time.Now()
	flight := fw.Open(p)
	flight.At(now, worker, -1, true)
	flight.First(now)
	flight.Close(now, &reports.Done{Status: http.StatusOK, First: time.Millisecond, Prompt: p.Prompt, Cached: 0, Output: tokens})
	return nil
}
