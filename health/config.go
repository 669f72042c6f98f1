package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Type is what a probe does.
type Type string

// The types (LoxiLB's probetype). None sends nothing.
const (
	TCP   Type = "tcp"   // a connection is taken: something listens
	HTTP  Type = "http"  // GET Path answers 2xx
	HTTPS Type = "https" // the same over TLS; the certificate is not verified, since a probe tells it nothing
	NATS  Type = "nats"  // somebody answers at the worker's ping subject; workers without one are not probed
	None  Type = "none"
)

// Types lists them, for help and error texts.
func Types() []string {
	return []string{string(TCP), string(HTTP), string(HTTPS), string(NATS), string(None)}
}

// Config is the prober's tuning. The zero value probes nothing.
type Config struct {
	Enabled bool // --health-probe; default false, the programs turn it on where discovery has no readiness of its own
	Type    Type // --health-probe-type; default http

	Path string // --health-probe-path, of HTTP and HTTPS; starts with "/"; default /health
	Port int    // --health-probe-port; 0 is the worker's own; default 0

	Interval time.Duration // --health-probe-interval: from the start of one probe of a worker to the next; ±10 %; 0.5 to 300 s, default 5 s
	Timeout  time.Duration // --health-probe-timeout: of a whole probe; 0.1 to 60 s and not above Interval, default 2 s
	Retries  int           // --health-probe-retries: a worker is down after 1+Retries failures in a row; 0 to 10, default 1
	Rise     int           // --health-probe-rise: it is up again after so many successes in a row; 1 to 10, default 2

	Seed uint64 // of the jitter; routers of one fleet should differ
}

// DefaultConfig returns the defaults named in [Config].
func DefaultConfig() Config {
	return Config{Type: HTTP, Path: "/health", Interval: 5 * time.Second, Timeout: 2 * time.Second, Retries: 1, Rise: 2}
}

// Validate reports all faults of c.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !slices.Contains(Types(), string(c.Type)) {
		bad("probe type %q: want one of %s", c.Type, strings.Join(Types(), ", "))
	}
	if !strings.HasPrefix(c.Path, "/") || strings.ContainsFunc(c.Path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		bad("probe path %q: want a path that starts with / and has no spaces", c.Path)
	}
	if c.Port < 0 || c.Port > 65535 {
		bad("probe port %d: want 0 to 65535", c.Port)
	}
	if c.Interval < 500*time.Millisecond || c.Interval > 300*time.Second {
		bad("probe interval %s: want 500ms to 5m", c.Interval)
	}
	if c.Timeout < 100*time.Millisecond || c.Timeout > time.Minute {
		bad("probe timeout %s: want 100ms to 1m", c.Timeout)
	}
	if c.Timeout > c.Interval {
		bad("probe timeout %s is above the interval %s: a probe must end before the next begins", c.Timeout, c.Interval)
	}
	if c.Retries < 0 || c.Retries > 10 {
		bad("probe retries %d: want 0 to 10", c.Retries)
	}
	if c.Rise < 1 || c.Rise > 10 {
		bad("probe rise %d: want 1 to 10", c.Rise)
	}
	return errors.Join(errs...)
}
