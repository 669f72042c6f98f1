package http

import (
	"crypto/tls"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Protocol is how requests are sent to workers.
type Protocol string

// The protocols. Workers with an https URL are reached over TLS with either; the
// second is then HTTP/2 when the worker agrees to it.
const (
	HTTP1 Protocol = "http1"
	H2C   Protocol = "h2c"
)

// Config is the transport's tuning. Start from [DefaultConfig].
type Config struct {
	Protocol Protocol // default http1

	// ConnectTimeout bounds a dial, TLS handshake included; 0 means the default
	// 500 ms (timeoutMemberConnect of the LoxiLB seed), else 50 ms to 30 s.
	ConnectTimeout time.Duration

	// IdleTimeout is for how long an unused connection is kept; 0 keeps none.
	// Default 4 s: below the 5 s after which uvicorn, the server of vLLM and
	// SGLang, closes it, so that a request does not meet a closing connection.
	IdleTimeout time.Duration

	MaxIdle   int           // unused connections kept per worker; 0 keeps none; default 256
	KeepAlive time.Duration // TCP keep-alive: silence before the first probe; 0 off; default 60 s

	// TLS returns the configuration for https workers, at each dial; nil verifies
	// with the system's roots.
	TLS func() *tls.Config
	// Control is called with each address that is about to be dialed, as
	// net.Dialer.Control; its error refuses the dial. nil refuses none.
	Control func(network, address string, c syscall.RawConn) error
}

const defaultConnect = 500 * time.Millisecond

// DefaultConfig returns the defaults named in [Config].
func DefaultConfig() Config {
	return Config{
		Protocol:       HTTP1,
		ConnectTimeout: defaultConnect,
		IdleTimeout:    4 * time.Second,
		MaxIdle:        256,
		KeepAlive:      60 * time.Second,
	}
}

// Validate reports all faults of c.
func (c Config) Validate() error {
	var errs []error
	if c.Protocol != HTTP1 && c.Protocol != H2C {
		errs = append(errs, fmt.Errorf("upstream protocol %q: want http1 or h2c", c.Protocol))
	}
	if c.ConnectTimeout != 0 && (c.ConnectTimeout < 50*time.Millisecond || c.ConnectTimeout > 30*time.Second) {
		errs = append(errs, fmt.Errorf("connect timeout %s: want 50ms to 30s, or 0 for %s", c.ConnectTimeout, defaultConnect))
	}
	if c.IdleTimeout < 0 {
		errs = append(errs, fmt.Errorf("idle timeout %s: must not be negative", c.IdleTimeout))
	}
	if c.MaxIdle < 0 {
		errs = append(errs, fmt.Errorf("max idle connections %d: must not be negative", c.MaxIdle))
	}
	if c.KeepAlive < 0 {
		errs = append(errs, fmt.Errorf("keep-alive %s: must not be negative", c.KeepAlive))
	}
	return errors.Join(errs...)
}
