package inferencepool

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"pointsman/internal/kube"
)

// maxPorts is how many target ports a pool can have (CRD v1).
const maxPorts = 8

// Config says which pool is followed. Either Pool or Selector is required; of the
// rest zero means the default.
type Config struct {
	// Config says where the API server is; its Namespace is the pool's.
	kube.Config
	// Pool is the name of the InferencePool; "" follows Selector.
	Pool string
	// Selector is a label selector of the Pods, for clusters without
	// InferencePools; "" follows Pool.
	Selector string
	// Ports are the target ports of Selector's Pods, 1 to 8.
	Ports []int

	// Model is what endpoints without a record serve; "" asks them.
	Model string
	// BlockSize is the KV block size of endpoints without a record, in tokens; 0
	// is what their cache events say.
	BlockSize int
	// KVEventsPort is where the first target port's engine publishes cache events
	// over ZeroMQ, that of the second target port one above, and so on; 0 for no
	// events of endpoints without a record.
	KVEventsPort int

	Asked   int           // questions for models that are open at once; default 8
	AskFor  time.Duration // longest such question; default 2 s
	Refresh time.Duration // from one to the next of an endpoint that answered; default 60 s

	// PickerPort is the port that this endpoint picker listens on, to tell when
	// the pool names another; 0 tells nothing.
	PickerPort int
}

// DefaultConfig returns a Config that lacks only its Pool or Selector.
func DefaultConfig() Config {
	return Config{Config: kube.DefaultConfig(), Asked: 8, AskFor: 2 * time.Second, Refresh: time.Minute}
}

// Validate reports all faults of c at once. It reads no file.
func (c Config) Validate() error {
	errs := []error{c.Config.Validate()}
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("inferencepool: "+format, args...)) }
	switch {
	case c.Selector != "" && len(c.Ports) == 0:
		fault("--endpoint-selector needs --endpoint-target-ports")
	case c.Selector == "" && len(c.Ports) > 0:
		fault("--endpoint-target-ports without --endpoint-selector: the InferencePool says which ports there are")
	case c.Selector != "":
		if _, err := labels.Parse(c.Selector); err != nil {
			fault("endpoint selector %q: %w", c.Selector, err)
		}
	case c.Pool == "":
		fault("no pool: give --pool-name, or --endpoint-selector and --endpoint-target-ports")
	default:
		for _, text := range validation.IsDNS1123Subdomain(c.Pool) {
			fault("pool name %q: %s", c.Pool, text)
		}
	}
	if err := checkPorts(c.Ports); err != nil {
		errs = append(errs, fmt.Errorf("inferencepool: endpoint target ports: %w", err))
	}
	if c.BlockSize < 0 || c.KVEventsPort < 0 || c.KVEventsPort > 65535-maxPorts || c.Asked < 0 || c.AskFor < 0 || c.Refresh < 0 {
		fault("block size %d, event port %d, questions %d, %v each, every %v: none may be below 0, nor a port above %d",
			c.BlockSize, c.KVEventsPort, c.Asked, c.AskFor, c.Refresh, 65535-maxPorts)
	}
	return errors.Join(errs...)
}

// checkPorts refuses what the CRD would.
func checkPorts(ports []int) error {
	if len(ports) > maxPorts {
		return fmt.Errorf("%d of them, want at most %d", len(ports), maxPorts)
	}
	for i, p := range ports {
		switch {
		case p < 1 || p > 65535:
			return fmt.Errorf("%d is no port", p)
		case slices.Contains(ports[:i], p):
			return fmt.Errorf("%d is there twice", p)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	c.Config = c.WithDefaults()
	if c.Asked == 0 {
		c.Asked = d.Asked
	}
	if c.AskFor == 0 {
		c.AskFor = d.AskFor
	}
	if c.Refresh == 0 {
		c.Refresh = d.Refresh
	}
	c.Selector = strings.TrimSpace(c.Selector)
	return c
}
