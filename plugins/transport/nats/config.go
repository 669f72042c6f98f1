package nats

import (
	"errors"
	"fmt"
	"time"

	"pointsman/forward"
	"pointsman/internal/broker"
)

// Config is the transport's tuning. Start from [DefaultConfig].
type Config struct {
	// Broker is where the broker is and as whom to connect.
	Broker broker.Config

	IdleTimeout time.Duration // longest wait for a worker's next frame; 0 for ever; default 900 s (--nats-req-idle-timeout)
	MaxDuration time.Duration // longest duration of a whole request; 0 (default) no limit (--nats-req-max-duration)
	MaxPending  int           // requests that a worker may have unanswered; 0 (default) no limit (--nats-req-max-pending)

	ConnectWait  time.Duration // longest attempt to connect; at least 100 ms; default 2 s
	ReplyBuffer  int64         // bytes of one answer kept for a client that does not take them; default 8 MiB
	TotalBuffer  int64         // the same, of all answers together; default 256 MiB
	MaxReply     int64         // largest answer that is held until its status is known; default 64 MiB
	WholeReplies bool          // ask for unary answers in one frame, as Infera's routers do; default false

	// ProbeInterval is how often a silent exchange asks the broker whether its
	// worker is still connected, the first time after half a second. 0 never
	// asks. Default 2 s.
	ProbeInterval time.Duration

	// Fallback takes requests that the broker cannot carry: larger than its
	// max_payload, or no JSON posts. nil (default) refuses them.
	Fallback forward.Transport
}

// DefaultConfig returns the defaults named in [Config].
func DefaultConfig() Config {
	return Config{
		Broker:        broker.DefaultConfig(),
		IdleTimeout:   900 * time.Second,
		ConnectWait:   2 * time.Second,
		ReplyBuffer:   8 << 20,
		TotalBuffer:   256 << 20,
		MaxReply:      64 << 20,
		ProbeInterval: 2 * time.Second,
	}
}

// Validate reports all faults of c. It opens no file.
func (c Config) Validate() error {
	errs := []error{c.Broker.Validate()}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"idle timeout", c.IdleTimeout},
		{"max duration", c.MaxDuration},
		{"probe interval", c.ProbeInterval},
		{"connect wait", c.ConnectWait},
	} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("nats %s %s: must not be negative", d.name, d.d))
		}
	}
	if c.MaxPending < 0 {
		errs = append(errs, fmt.Errorf("nats max pending %d: must not be negative", c.MaxPending))
	}
	if c.ReplyBuffer < 1 || c.TotalBuffer < c.ReplyBuffer || c.MaxReply < 1 {
		errs = append(errs, fmt.Errorf("nats buffers of %d, %d and %d bytes: want at least 1, and no less in total than for one", c.ReplyBuffer, c.TotalBuffer, c.MaxReply))
	}
	return errors.Join(errs...)
}
