package zmq

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Config is how publishers are followed. Zero means the default throughout.
type Config struct {
	// Topic is what a message's first frame must begin with. Messages with an
	// empty topic, vLLM's own default, are taken too. Default "kv-events", which
	// Infera gives to its engines.
	Topic string
	// ReplayPortOffset is a publisher's replay port less its event port, for
	// fleets whose records do not name the replay address. Default 0: such
	// publishers have none.
	ReplayPortOffset int
	// ReplayTimeout bounds the wait for each message of a replay, and ten times
	// of it the whole replay. Default 3 s.
	ReplayTimeout time.Duration
	// DialTimeout bounds the connection and, again, the handshake. Default 3 s.
	DialTimeout time.Duration
	// MaxMessage is the largest message taken, in bytes. Default 64 MiB.
	MaxMessage int
	// Backoff is the wait before the first new attempt, doubling up to
	// MaxBackoff. Defaults 100 ms and 5 s, as in Infera.
	Backoff, MaxBackoff time.Duration
	// GiveUp is how long a publisher may be out of reach before the view of its
	// cache is dropped. Default 10 min.
	GiveUp time.Duration
	// ResyncEvery is the least time between two attempts to replay the whole
	// history of one publisher. Default 10 s.
	ResyncEvery time.Duration
}

// DefaultConfig returns the defaults that a zero Config stands for.
func DefaultConfig() Config {
	return Config{
		Topic: "kv-events", ReplayTimeout: 3 * time.Second, DialTimeout: 3 * time.Second, MaxMessage: 64 << 20,
		Backoff: 100 * time.Millisecond, MaxBackoff: 5 * time.Second, ResyncEvery: 10 * time.Second, GiveUp: 10 * time.Minute,
	}
}

// Validate reports all faults of c at once.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"ReplayTimeout", c.ReplayTimeout},
		{"DialTimeout", c.DialTimeout},
		{"Backoff", c.Backoff},
		{"MaxBackoff", c.MaxBackoff},
		{"ResyncEvery", c.ResyncEvery},
		{"GiveUp", c.GiveUp},
	} {
		if f.d < 0 {
			errs = append(errs, fmt.Errorf("kv events over zmq: %s %v is below 0: give 0 for the default", f.name, f.d))
		}
	}
	if c.MaxMessage < 0 {
		errs = append(errs, errors.New("kv events over zmq: MaxMessage is below 0: give 0 for the default"))
	}
	if c.ReplayPortOffset <= -65535 || c.ReplayPortOffset >= 65535 {
		errs = append(errs, fmt.Errorf("kv events over zmq: replay port offset %d leads to no port", c.ReplayPortOffset))
	}
	if len(c.Topic) > 255 {
		errs = append(errs, errors.New("kv events over zmq: the topic is longer than 255 bytes"))
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	c.ReplayTimeout = cmp.Or(c.ReplayTimeout, d.ReplayTimeout)
	c.DialTimeout = cmp.Or(c.DialTimeout, d.DialTimeout)
	c.Backoff = cmp.Or(c.Backoff, d.Backoff)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, d.MaxBackoff)
	c.ResyncEvery = cmp.Or(c.ResyncEvery, d.ResyncEvery)
	c.GiveUp = cmp.Or(c.GiveUp, d.GiveUp)
	c.MaxMessage = cmp.Or(c.MaxMessage, d.MaxMessage)
	c.Topic = cmp.Or(c.Topic, d.Topic)
	return c
}
