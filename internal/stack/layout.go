package stack

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Hosts of a subnet, and the ports that are the same on every host.
const (
	gatewayHost = 1
	etcdHost    = 2
	firstEPP    = 3
	firstWorker = 10
	natsHost    = firstWorker + maxWorkers

	behind        = maxWorkers / 2 // from a proxied worker's host to its engine's own
	natsProxyHost = natsHost + 1
	etcdProxyHost = natsHost + 2

	gatewayPort = "8080"
	envoyAdmin  = "9901"
	grpcPort    = "9002"
	healthPort  = "9003"
	metricsPort = "9090"
	pprofPort   = "6060"
	enginePort  = "30000"
	controlPort = "30001"
	eventsPort  = "20000"
	replayPort  = "20100"
	forwardPort = "8000"
	natsPort    = "4222"
	etcdPort    = "2379"
	pdPort      = "8998"
)

// replayOffset is what the EPP is told of the two ports above.
const replayOffset = "100"

// EPP is one endpoint picker.
type EPP struct {
	Service

	GRPC   string // host:port of ext-proc
	Health string // host:port of gRPC health
	Admin  string // http://host:port of metrics, health and debug pages
}

// Worker is one simulated engine and the forwarder beside it.
type Worker struct {
	ID     string // as registered: host:port of the engine
	Config WorkerConfig

	Engine    Service
	Forwarder Service

	URL            string // http://host:port of the engine
	Control        string // http://host:port of the engine's receipts and faults
	Destination    string // host:port of the forwarder
	ForwarderURL   string // http:// and Destination
	ForwarderAdmin string // http://host:port of the forwarder's metrics and debug pages
}

// newEPP describes replica i; nothing runs yet.
func (s *Stack) newEPP(i int) *EPP {
	host := s.net.addr(firstEPP + i)
	e := &EPP{
		GRPC: host + ":" + grpcPort, Health: host + ":" + healthPort,
		Admin: "http://" + host + ":" + metricsPort,
	}
	args := []string{
		filepath.Join(s.cfg.Bin, "epp"),
		"--host", host, "--grpc-port", grpcPort, "--grpc-health-port", healthPort, "--metrics-port", metricsPort,
		"--destination-port", forwardPort, "--secure-serving=false",
		// A whole fleet shares this machine's cores: a worker may be slow to answer,
		// and a prompt that is approximated once does not match exact blocks.
		"--tokenize-timeout-ms", "2000",
		"--discovery-backend", "etcd", "--etcd-endpoint", s.Etcd.Endpoint,
		"--log-level", "debug",
	}
	args = slices.Concat(args, s.eventFlags(), s.profilerFlags(host))
	if s.cfg.Policy != "" {
		args = append(args, "--router-policy", s.cfg.Policy)
	}
	if s.cfg.OverlapWeight != 0 {
		args = append(args, "--kv-overlap-weight", strconv.FormatFloat(s.cfg.OverlapWeight, 'g', -1, 64))
	}
	e.Name, e.dir = "epp-"+strconv.Itoa(i), s.Dir
	e.argv = append(args, s.cfg.EPPArgs...)
	e.ready = grpcServing(e.Health, "readiness")
	return e
}

// newWorker describes worker i; nothing runs yet.
func (s *Stack) newWorker(i int, cfg WorkerConfig) *Worker {
	if cfg.Model == "" {
		cfg.Model = DefaultModel
	}
	if cfg.Engine == "" {
		cfg.Engine = "vllm"
	}
	if cfg.BlockSize == 0 {
		cfg.BlockSize = 16
	}
	host := s.net.addr(firstWorker + i)
	own := host // where the engine itself is
	if s.cfg.Proxied {
		own = s.net.addr(firstWorker + behind + i)
	}
	w := &Worker{
		ID: host + ":" + enginePort, Config: cfg,
		URL: "http://" + host + ":" + enginePort, Control: "http://" + own + ":" + controlPort,
		Destination: host + ":" + forwardPort, ForwarderURL: "http://" + host + ":" + forwardPort,
		ForwarderAdmin: "http://" + host + ":" + metricsPort,
	}
	w.Engine.Name, w.Engine.dir = "worker-"+strconv.Itoa(i), s.Dir
	w.Engine.argv = append(s.engineArgs(host, own, cfg), cfg.Args...)
	w.Engine.ready = httpOK(s.client, "http://"+own+":"+enginePort+"/health")

	w.Forwarder.Name, w.Forwarder.dir = "forwarder-"+strconv.Itoa(i), s.Dir
	w.Forwarder.argv = slices.Concat([]string{
		filepath.Join(s.cfg.Bin, "forwarder"),
		"--host", host, "--port", forwardPort, "--metrics-port", metricsPort, "--router-mode", "direct",
		"--discovery-backend", "etcd", "--etcd-endpoint", s.etcdFor(),
		"--log-level", "debug",
	}, s.requestFlags(), s.eventFlags(), s.profilerFlags(host), s.cfg.ForwarderArgs)
	ready := w.ForwarderURL
	if slices.Contains(s.cfg.ForwarderArgs, "--cert-path") { // then that port speaks TLS
		ready = w.ForwarderAdmin
	}
	w.Forwarder.ready = httpOK(s.client, ready+"/ready")
	return w
}

// requestFlags say how requests reach the engines, to forwarders.
func (s *Stack) requestFlags() []string {
	if s.Broker == nil {
		return []string{"--request-transport", "http"}
	}
	server := s.Broker.URL
	if s.cfg.Proxied {
		server = "nats://" + net.JoinHostPort(s.net.addr(natsProxyHost), natsPort)
	}
	return []string{"--request-transport", "nats", "--nats-server", s.Broker.shown(server)}
}

// etcdFor is where the forwarders find etcd.
func (s *Stack) etcdFor() string {
	if s.cfg.Proxied {
		return "http://" + net.JoinHostPort(s.net.addr(etcdProxyHost), etcdPort)
	}
	return s.Etcd.Endpoint
}

// eventFlags say how cache events come, to EPPs and forwarders.
func (s *Stack) eventFlags() []string {
	if s.Broker == nil || !s.Broker.cfg.Events {
		return []string{"--kv-event-transport", "zmq", "--kv-replay-port-offset", replayOffset}
	}
	return []string{"--kv-event-transport", "nats", "--nats-server", s.Broker.shown(s.Broker.URL)}
}

// profilerFlags open a program's profiler, if that is wanted.
func (s *Stack) profilerFlags(host string) []string {
	if !s.cfg.Profiled {
		return nil
	}
	return []string{"--pprof", net.JoinHostPort(host, pprofPort)}
}

// Profiler returns where the program with the given admin address has its profiler
// ([Config.Profiled]).
func Profiler(admin string) string {
	return strings.TrimSuffix(admin, ":"+metricsPort) + ":" + pprofPort + "/debug/pprof/"
}

// engineArgs is simworker's command line.
func (s *Stack) engineArgs(host, own string, cfg WorkerConfig) []string {
	lease := s.cfg.Lease
	if lease == 0 {
		lease = 30 * time.Second
	}
	args := []string{
		filepath.Join(s.cfg.Bin, "simworker"),
		"--host", own, "--advertise-host", host, "--port", enginePort, "--control-port", controlPort,
		"--model", cfg.Model, "--engine", cfg.Engine, "--block-size", strconv.Itoa(cfg.BlockSize),
		"--kv-events-port", eventsPort, "--kv-replay-port", replayPort,
		"--discovery-backend", "etcd", "--etcd-endpoint", s.Etcd.Endpoint,
		"--etcd-lease-ttl-s", strconv.FormatFloat(lease.Seconds(), 'f', -1, 64),
	}
	if s.Broker != nil && s.Broker.cfg.Events {
		args = append(args, "--kv-event-transport", "nats")
	}
	if cfg.Role != "" {
		args = append(args, "--disaggregation-mode", cfg.Role)
	}
	if cfg.Protocol != "" {
		args = append(args, "--pd-protocol", cfg.Protocol, "--pd-port", pdPort)
	}
	if cfg.Direct {
		return append(args, "--request-transport", "http")
	}
	if s.Broker != nil {
		return append(args, "--request-transport", "nats", "--nats-server", s.Broker.URL)
	}
	return append(args, s.requestFlags()...)
}

// envoyReady is a probe of Envoy's admin page.
func (s *Stack) envoyReady() func(context.Context) error {
	return httpOK(s.client, s.AdminURL+"/ready")
}

// newHTTPClient returns a client for probes: no proxies, nothing kept open.
func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}
