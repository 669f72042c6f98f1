package stack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Config says what to run.
type Config struct {
	Bin   string // directory of the binaries epp, forwarder and simworker
	Envoy string // path of the Envoy binary, see [FindEnvoy]
	Dir   string // logs and data; "" makes a temporary directory, removed by a clean Close

	Workers   []WorkerConfig
	Bootstrap Bootstrap
	Broker    *BrokerConfig // nil: requests go over HTTP

	Policy        string  // the EPP's --router-policy; "" is its default
	OverlapWeight float64 // the EPP's --kv-overlap-weight; 0 is its default
	EPPs          int     // replicas; 0 is one
	EPPArgs       []string
	ForwarderArgs []string

	// Proxied puts a fault proxy before every engine, the broker and etcd; see
	// [Stack.Proxies].
	Proxied bool

	// Profiled opens the profiler of every EPP and forwarder, at [Profiler] of its
	// admin address.
	Profiled bool

	// Unguarded takes out of the bootstrap the filter that removes clients' routing
	// headers, so that the EPP alone must keep them from steering.
	Unguarded bool

	// Unseen keeps response bodies from the EPPs: response_body_mode NONE.
	Unseen bool

	// Subsets makes Envoy confine requests to the endpoints that their headers name,
	// as a gateway with subset load balancing would; see [HeaderSubsetText].
	Subsets bool

	// Edit changes the bootstrap after all else, with what a test alone wants; nil
	// for nothing.
	Edit func(bootstrap map[string]any) error

	// Retries is how often Envoy may send a request again, to the next endpoint of
	// an EPP's list; 0 as the bootstraps are shipped.
	Retries int

	// Lease is how long etcd keeps a worker that was killed; 0 is Infera's 30 s.
	Lease time.Duration
	// EtcdDown leaves etcd stopped, and returns from Start when the processes
	// run: nothing can be ready. Call Etcd.Start and then WaitReady.
	EtcdDown bool
}

// WorkerConfig is one simulated engine.
type WorkerConfig struct {
	Model     string // "" is sim-model
	Engine    string // vllm or sglang, which decides the events' encoding; "" is vllm
	BlockSize int    // 0 is 16
	Role      string // mixed, prefill or decode; "" is mixed
	Protocol  string // how it meets its partner; "" for none
	Direct    bool   // requests come over HTTP although there is a broker
	Args      []string
}

// DefaultModel is the model that workers serve when they are not told.
const DefaultModel = "sim-model"

// MixedWorkers returns n workers of one model that speak the two engines' event
// encodings in turn.
func MixedWorkers(n int, args ...string) []WorkerConfig {
	workers := make([]WorkerConfig, n)
	for i := range workers {
		workers[i] = WorkerConfig{Engine: [...]string{"vllm", "sglang"}[i%2], Args: args}
	}
	return workers
}

// PairedWorkers returns prefill and decode workers of one model that speak
// SGLang's protocol to each other.
func PairedWorkers(prefill, decode int, args ...string) []WorkerConfig {
	workers := make([]WorkerConfig, 0, prefill+decode)
	for range prefill {
		workers = append(workers, WorkerConfig{Engine: "sglang", Role: "prefill", Protocol: "sglang-bootstrap", Args: args})
	}
	for range decode {
		workers = append(workers, WorkerConfig{Engine: "sglang", Role: "decode", Protocol: "sglang-bootstrap", Args: args})
	}
	return workers
}

// maxWorkers is how many fit into a subnet's addresses.
const maxWorkers = 200

func (c *Config) validate() error {
	var errs []error
	for _, name := range []string{"epp", "forwarder", "simworker"} {
		if _, err := os.Stat(filepath.Join(c.Bin, name)); err != nil {
			errs = append(errs, fmt.Errorf("no %s in %s: run make build: %w", name, c.Bin, err))
		}
	}
	if _, err := os.Stat(c.Envoy); err != nil {
		errs = append(errs, fmt.Errorf("%w: run make tools: %w", ErrNoEnvoy, err))
	}
	if n := len(c.Workers); n == 0 || n > maxWorkers {
		errs = append(errs, fmt.Errorf("%d workers: give 1 to %d", n, maxWorkers))
	}
	if c.Proxied && len(c.Workers) > behind {
		errs = append(errs, fmt.Errorf("%d workers behind proxies: give at most %d", len(c.Workers), behind))
	}
	return errors.Join(errs...)
}
