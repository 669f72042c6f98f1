package kube

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Config says where the API server is and how much patience to have with it.
// Zero means the default.
type Config struct {
	// Namespace of the objects; default the namespace of the Pod this runs in,
	// else that of the kubeconfig's context, else "default".
	Namespace string
	// Kubeconfig is a file to find the API server with; default the files of the
	// variable KUBECONFIG, else ~/.kube/config, else the Pod's service account.
	Kubeconfig string

	Page    int64         // objects per page of a listing; default 500
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

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Page: 500, Timeout: 30 * time.Second,
		WatchFor: 45 * time.Second, Silence: 90 * time.Second,
		Backoff: time.Second, MaxBackoff: 30 * time.Second,
	}
}

// Validate reports all faults of c at once. It reads no file.
func (c Config) Validate() error {
	var errs []error
	if c.Namespace != "" {
		for _, fault := range validation.IsDNS1123Label(c.Namespace) {
			errs = append(errs, fmt.Errorf("kubernetes: namespace %q: %s", c.Namespace, fault))
		}
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
	if d := c.WithDefaults(); d.Silence <= d.WatchFor {
		errs = append(errs, fmt.Errorf("kubernetes: silence %v must be longer than a watch's %v", d.Silence, d.WatchFor))
	}
	return errors.Join(errs...)
}

// WithDefaults returns c with the defaults in place of zeros.
func (c Config) WithDefaults() Config {
	d := DefaultConfig()
	c.Timeout = cmp.Or(c.Timeout, d.Timeout)
	c.WatchFor = cmp.Or(c.WatchFor, d.WatchFor)
	c.Silence = cmp.Or(c.Silence, d.Silence)
	c.Backoff = cmp.Or(c.Backoff, d.Backoff)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, d.MaxBackoff)
	c.Page = cmp.Or(c.Page, d.Page)
	return c
}
