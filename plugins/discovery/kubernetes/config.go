package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
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
	// Namespace of the Pods; default the namespace of the Pod this runs in, else
	// that of the kubeconfig's context, else "default".
	Namespace string
	// Kubeconfig is a file to find the API server with; default the files of the
	// variable KUBECONFIG, else ~/.kube/config, else the Pod's service account.
	Kubeconfig string
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

	Page    int64         // Pods per page of a listing; default 500
	Timeout time.Duration // of each page of a listing and of connecting; default 30 s
	// WatchFor is after which time, in whole seconds, the API server ends a watch.
	// It sends a bookmark about 2 s before, when it can: a real one does so for
	// each watch of 20 s and more, for few of 5 s. A watch without an event or a
	// bookmark is followed by a listing. Default 45 s.
	WatchFor   time.Duration
	Silence    time.Duration // a watch without any sign of life for that long is dead; default 90 s
	Backoff    time.Duration // wait after a failure, doubling; default 1 s, as in Infera
	MaxBackoff time.Duration // default 30 s, as in Infera
}

// DefaultConfig returns a Config that lacks only its Selector.
func DefaultConfig() Config {
	return Config{
		Ready: ReadyWorker,
		Page:  500, Timeout: 30 * time.Second,
		WatchFor: 45 * time.Second, Silence: 90 * time.Second,
		Backoff: time.Second, MaxBackoff: 30 * time.Second,
	}
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
	if c.Namespace != "" {
		for _, fault := range validation.IsDNS1123Label(c.Namespace) {
			errs = append(errs, fmt.Errorf("kubernetes: namespace %q: %s", c.Namespace, fault))
		}
	}
	switch c.Ready {
	case "", ReadyWorker, ReadyPod, ReadyOff:
	default:
		errs = append(errs, fmt.Errorf("kubernetes: readiness %q: want worker, pod or off", c.Ready))
	}
	if c.Page < 0 {
		errs = append(errs, fmt.Errorf("kubernetes: page size %d is below 0: give 0 for the default", c.Page))
	}
	for _, d := range []struct {
		name string
		time.Duration
	}{
		{"timeout", c.Timeout},
		{"watch duration", c.WatchFor},
		{"silence", c.Silence},
		{"backoff", c.Backoff},
		{"maximum backoff", c.MaxBackoff},
	} {
		if d.Duration < 0 {
			errs = append(errs, fmt.Errorf("kubernetes: %s %v is below 0: give 0 for the default", d.name, d.Duration))
		}
	}
	if d := c.withDefaults(); d.Silence <= d.WatchFor {
		errs = append(errs, fmt.Errorf("kubernetes: silence %v must be longer than a watch's %v", d.Silence, d.WatchFor))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	for _, f := range []struct{ to, from *time.Duration }{
		{&c.Timeout, &d.Timeout},
		{&c.WatchFor, &d.WatchFor},
		{&c.Silence, &d.Silence},
		{&c.Backoff, &d.Backoff},
		{&c.MaxBackoff, &d.MaxBackoff},
	} {
		if *f.to == 0 {
			*f.to = *f.from
		}
	}
	if c.Page == 0 {
		c.Page = d.Page
	}
	if c.Ready == "" {
		c.Ready = d.Ready
	}
	return c
}
