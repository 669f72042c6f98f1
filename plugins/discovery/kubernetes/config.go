package kubernetes

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"pointsman/internal/kube"
)

// Readiness says what must be Ready for a worker to get requests.
type Readiness string

const (
	// ReadyWorker looks at the worker's own container, and at the Pod where
	// something other than a container keeps it from being Ready (a lost node, a
	// readiness gate). It is right for a forwarder inside the worker's Pod: such
	// a sidecar is not Ready before it knows a worker, so waiting for the whole
	// Pod would wait for itself.
	ReadyWorker Readiness = "worker"
	// ReadyPod looks at the Pod's Ready condition, which covers the sidecar. It
	// is right for an EPP, whose gateway sends requests to the sidecar.
	ReadyPod Readiness = "pod"
	// ReadyOff looks at nothing but the Pod's phase, as Infera's routers do.
	ReadyOff Readiness = "off"
)

// Config says which Pods are workers and how much patience to have with the API
// server. Selector is required; of the rest zero means the default.
type Config struct {
	// Selector is the label selector of the workers' Pods, for instance
	// infera.amd.com/deployment=NAME. It may match more: Pods without a
	// registration are passed over.
	Selector string
	// Ready is what must be Ready; default ReadyWorker.
	Ready Readiness
	// Container is the name of the worker's container. By default it is the one
	// that declares the port of the worker's URL, else the first that is not
	// called infera-frontend.
	Container string
	// VerifyAddress refuses records whose URL names none of the addresses of
	// their Pod and its node, so that a Pod can't draw requests elsewhere.
	// Default off: Infera's launchers may advertise any name.
	VerifyAddress bool

	// Config says where the API server is; its Namespace is the Pods'.
	kube.Config
}

// DefaultConfig returns a Config that lacks only its Selector.
func DefaultConfig() Config {
	return Config{Ready: ReadyWorker, Config: kube.DefaultConfig()}
}

// Validate reports all faults of c at once. It reads no file.
func (c Config) Validate() error {
	var errs []error
	if strings.TrimSpace(c.Selector) == "" {
		errs = append(errs, errors.New("kubernetes: no label selector: give --k8s-label-selector or "+
			"INFERA_K8S_LABEL_SELECTOR, for instance infera.amd.com/deployment=NAME"))
	} else if _, err := labels.Parse(c.Selector); err != nil {
		errs = append(errs, fmt.Errorf("kubernetes: label selector %q: %w", c.Selector, err))
	}
	switch c.Ready {
	case "", ReadyWorker, ReadyPod, ReadyOff:
	default:
		errs = append(errs, fmt.Errorf("kubernetes: readiness %q: want worker, pod or off", c.Ready))
	}
	return errors.Join(append(errs, c.Config.Validate())...)
}

func (c Config) withDefaults() Config {
	c.Config = c.WithDefaults()
	if c.Ready == "" {
		c.Ready = ReadyWorker
	}
	return c
}
