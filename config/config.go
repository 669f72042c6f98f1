// Package config reads what an operator says: flag > environment > file >
// default, with Infera's names and defaults so that its command lines work
// unchanged, and reads back what is in force.
//
// One table (table.go) names every setting once. Help text, docs/flags.md,
// error texts and the read-back are derived from it. Each room owns its Config
// with defaults and bounds; this package only names the fields.
package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/extproc"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/health"
	"pointsman/internal/broker"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/reports"
	"pointsman/trust"
)

// Config is everything a program can be told. Parts with a Config of their own
// are the room's; the rest is what the wiring needs.
type Config struct {
	Program Program
	File    string // --config, "" for none
	// PickerConfigFile and PickerConfigText are an EndpointPickerConfig; "" for none.
	PickerConfigFile, PickerConfigText string

	Pool string // --pool-name: the InferencePool, and the section of the file's pools, that is the program's

	Host           string
	Port           int // forwarder's HTTP port
	GRPCPort       int
	GRPCHealthPort int    // 0 disables
	MetricsPort    int    // EPP: 0 disables; forwarder: 0 serves on Port
	CertPath       string // directory with tls.crt and tls.key; "" makes a self-signed certificate
	AdminToken     string // "" admits this machine only

	Trust Trust

	Discovery  string // kubernetes, etcd, static
	StaticFile string
	Etcd       Etcd
	Kubernetes Kubernetes

	InferencePool InferencePool // beside Pool, its name

	NATS             NATS
	RequestTransport string // http, nats
	Upstream         Upstream
	KVEventTransport string // zmq, nats, none
	// KVEventFallback lets ZMQ take the place of a broker that never answers: when
	// nothing was said of either (Infera's operator gives its EPP no transport,
	// defect E4).
	KVEventFallback bool
	KVEventTopic    string
	KVReplayOffset  int // a publisher's replay port less its event port; 0 for none

	TokenizerPath   string
	Tokenizer       string // auto, remote, none
	TokenizeTimeout time.Duration
	// TokenizeMaxBytes is the longest prompt that is tokenized in this process.
	TokenizeMaxBytes int
	Names            fleet.Names // aliases and adapters beside those of the records
	Audit            audit.Config

	KVExact string // auto, on, off: whether picks heed cache events
	PDMode  string // auto, off: whether prefill/decode pairs are formed
	Index   kvindex.Config
	Prompt  prompt.Config
	Picker  picker.Config
	Breaker breaker.Config
	Health  health.Config
	ExtProc extproc.Config

	Reports reports.Config

	Admission        admission.Config
	MaxTotalInflight int // client connections at which accepting pauses; 0 for no bound

	Forward forward.Config

	LogLevel  string
	LogFormat string

	ignored   map[string]*string // texts of accepted settings without effect
	origin    map[string]origin
	pending   map[string]string       // texts of settings that wait for a restart, by name
	again     func() (*Config, error) // reads everything anew; nil when it was not parsed
	fileText  []byte                  // that was read
	mapped    []string                // what the EndpointPickerConfig says that is not taken to the letter
	filePools []string                // names of the file's pools, sorted
	warnings  []string
}

// Etcd is how to reach etcd.
type Etcd struct {
	Endpoint, Prefix, User, Password string
	CA, Cert, Key                    string // PEM files; "" for none
}

// Kubernetes is which Pods are workers.
type Kubernetes struct {
	Selector, Namespace, Kubeconfig string
	Ready                           string // worker, pod, off
}

// InferencePool is which Pods are the pool's endpoints, and what those are that
// carry no worker's record.
type InferencePool struct {
	Namespace    string
	Selector     string // instead of a pool
	Ports        []int  // of Selector
	Model        string // "" asks the endpoints
	BlockSize    int    // 0 is what cache events say
	KVEventsPort int    // 0 for none
}

// NATS is how to reach the broker, and the bounds of requests over it.
type NATS struct {
	broker.Config

	IdleTimeout time.Duration
	MaxDuration time.Duration
	MaxPending  int
}

// Upstream is how the HTTP transport reaches workers.
type Upstream struct {
	Protocol       string        // http1, h2c
	ConnectTimeout time.Duration // for the dial and the TLS handshake
	KeepAlive      time.Duration // silence on a worker's socket before the first probe; 0 off
}

// Default returns the configuration of a program that was told nothing:
// Infera's defaults where Infera has the setting.
func Default(prog Program) *Config {
	c := &Config{
		Program:          prog,
		Pool:             "default",
		Host:             "0.0.0.0",
		Port:             8000,
		GRPCPort:         9002,
		GRPCHealthPort:   9003,
		Discovery:        "kubernetes",
		Etcd:             Etcd{Prefix: "/infera/workers/"},
		Kubernetes:       Kubernetes{Ready: "worker"},
		NATS:             NATS{Config: broker.DefaultConfig(), IdleTimeout: 900 * time.Second},
		RequestTransport: "nats",
		Upstream:         Upstream{Protocol: "http1", ConnectTimeout: 500 * time.Millisecond, KeepAlive: 60 * time.Second},
		KVEventTransport: "nats",
		KVEventTopic:     "kv-events",
		Tokenizer:        "auto",
		TokenizeTimeout:  50 * time.Millisecond,
		TokenizeMaxBytes: 1 << 20,
		KVExact:          "auto",
		PDMode:           "auto",
		Audit:            audit.DefaultConfig(),
		Index:            kvindex.DefaultConfig(),
		Prompt:           prompt.DefaultConfig(),
		Picker:           picker.DefaultConfig(),
		Breaker:          breaker.DefaultConfig(),
		Health:           health.DefaultConfig(),
		ExtProc:          extproc.DefaultConfig(),
		Admission:        admission.DefaultConfig(),
		Reports:          reports.DefaultConfig(),
		Forward:          forward.DefaultConfig(),
		Trust:            Trust{MinTLS: "1.3", SaltMode: trust.SaltPass},
		LogLevel:         "info",
		LogFormat:        "json",
		ignored:          map[string]*string{},
		origin:           map[string]origin{},
	}
	if prog&EPP != 0 {
		c.MetricsPort = 9090
		c.Trust.MinTLS = "1.2"     // the most that Envoy speaks to upstreams by default
		c.Kubernetes.Ready = "pod" // the gateway sends to the sidecar, which must be ready too
	}
	return c
}

// LocalTokenizer is the path of a tokenizer on this machine; "" when there is
// none, or ids are not wanted.
func (c *Config) LocalTokenizer() string {
	if c.Tokenizer == "none" || c.TokenizerPath == "" {
		return ""
	}
	if _, err := os.Stat(c.TokenizerPath); err != nil {
		return ""
	}
	return c.TokenizerPath
}

// finish derives what one flag sets in several rooms.
func (c *Config) finish() {
	c.ExtProc.DestinationPort = c.Picker.DestinationPort
	c.finishAdmission()
	c.ExtProc.MaxMessage = max(c.ExtProc.MaxMessage, c.ExtProc.MaxBody+(1<<20))
	if o := c.origin["discovery-backend"]; o.source == FromDefault {
		c.Discovery = c.discoveryOf()
	}
	if o := c.origin["health-probe"]; o.source == FromDefault {
		c.Health.Enabled = c.Discovery != "kubernetes" && c.Discovery != "inferencepool" // there the kubelet's readiness counts
	}
	if c.KVExact == "off" {
		c.KVEventTransport = "none"
	}
	c.KVEventFallback = c.KVEventTransport == "nats" && !c.said("kv-event-transport") && !c.said("nats-server")
	if c.Tokenizer == "auto" {
		c.Tokenizer = "remote"
		if c.KVEventTransport == "none" || !c.Picker.UsesCache() {
			c.Tokenizer = "none" // exact ids buy nothing when there is nothing exact to match
		}
	}
}

// discoveryOf returns the backend of a program that was not told one: the command
// lines of other endpoint pickers name a pool, or a selector with ports, instead.
func (c *Config) discoveryOf() string {
	pool := c.said("pool-name") && c.Program&EPP != 0
	if c.Kubernetes.Selector == "" && c.Etcd.Endpoint == "" && c.StaticFile == "" && (pool || c.InferencePool.Selector != "") {
		return "inferencepool"
	}
	return "kubernetes"
}

// Validate reports every fault at once, those of the rooms included.
func (c *Config) Validate() error {
	var errs []error
	part := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	part("kv index", c.Index.Validate())
	part("prompts", c.Prompt.Validate())
	part("audit", c.Audit.Validate())
	part("picking", c.Picker.Validate())
	part("breaker", c.Breaker.Validate())
	part("admission", c.Admission.Validate())
	part("load reports", c.Reports.Validate())
	part("health", c.Health.Validate())
	part("broker", c.NATS.Validate())
	if c.Program&EPP != 0 {
		part("ext-proc", c.ExtProc.Validate())
	}
	if c.Program&Forwarder != 0 {
		part("requests", c.Forward.Validate())
	}
	switch {
	case c.Discovery == "static" && c.StaticFile == "":
		errs = append(errs, errors.New("--discovery-backend static needs --static-file"))
	case c.Discovery == "etcd" && c.Etcd.Endpoint == "":
		errs = append(errs, errors.New("--discovery-backend etcd needs --etcd-endpoint"))
	case c.Discovery == "kubernetes" && c.Kubernetes.Selector == "":
		errs = append(errs, errors.New("--discovery-backend kubernetes needs --k8s-label-selector, for instance infera.amd.com/deployment=NAME; an endpoint picker of an InferencePool needs --pool-name"))
	case c.Discovery == "inferencepool" && c.InferencePool.Selector == "" && !c.said("pool-name"):
		errs = append(errs, errors.New("--discovery-backend inferencepool needs --pool-name, or --endpoint-selector with --endpoint-target-ports"))
	case c.Discovery == "inferencepool" && (c.InferencePool.Selector == "") != (len(c.InferencePool.Ports) == 0):
		errs = append(errs, errors.New("--endpoint-selector and --endpoint-target-ports: give both or none"))
	}
	if (c.Etcd.Cert == "") != (c.Etcd.Key == "") {
		errs = append(errs, errors.New("--etcd-cert and --etcd-key: give both or none"))
	}
	if c.Breaker.PairCanary == breaker.CanaryOnRecovery && (c.Program == EPP || c.Forward.Mode == forward.Direct) {
		errs = append(errs, errors.New("--pair-canary on-recovery: only a forwarder in --router-mode auto sends canaries; say off, and clients' requests try the pairs"))
	}
	errs = append(errs, c.validateTrust()...)
	return errors.Join(append(errs, c.portClash())...)
}

// portClash refuses two listeners on one port before either is opened.
func (c *Config) portClash() error {
	ports := map[string]int{"--metrics-port": c.MetricsPort}
	if c.Program&EPP != 0 {
		ports["--grpc-port"], ports["--grpc-health-port"] = c.GRPCPort, c.GRPCHealthPort
	}
	if c.Program&Forwarder != 0 {
		ports["--port"] = c.Port
	}
	used := map[int][]string{}
	for name, port := range ports {
		if port != 0 {
			used[port] = append(used[port], name)
		}
	}
	for port, flags := range used {
		if len(flags) > 1 {
			slices.Sort(flags)
			return fmt.Errorf("%s: all are %d, give each its own port", strings.Join(flags, ", "), port)
		}
	}
	return nil
}

// Warnings are things to tell the operator once, at start.
func (c *Config) Warnings() []string { return c.warnings }

func (c *Config) collectWarnings(rows []setting) []string {
	var out []string
	for _, s := range rows {
		if o := c.origin[s.name]; s.unused != "" && o.source != FromDefault && s.value.get() != "" {
			out = append(out, fmt.Sprintf("%s has no effect: %s", o.from, s.unused))
		}
	}
	if len(c.filePools) > 0 && !slices.Contains(c.filePools, c.Pool) {
		out = append(out, fmt.Sprintf("the file has sections for the pools %s and none for this program's, which is %q: --pool-name says which", strings.Join(c.filePools, ", "), c.Pool))
	}
	out = append(out, c.admissionWarnings()...)
	out = append(out, c.mapped...)
	if c.TokenizerPath != "" && c.Tokenizer != "none" && c.LocalTokenizer() == "" {
		out = append(out, fmt.Sprintf("--router-tokenizer-path %s is no path on this machine: token ids come from the workers' /tokenize", c.TokenizerPath))
	}
	return out
}
