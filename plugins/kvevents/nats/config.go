package nats

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"pointsman/internal/broker"
)

// Config is how the events are followed. Zero means the default throughout.
type Config struct {
	// Broker is where the broker is and as whom to connect.
	Broker broker.Config

	// ConnectWait bounds each attempt to connect, and each call of the broker's
	// API. Default 5 s.
	ConnectWait time.Duration
	// Backoff is the wait before the first new attempt, doubling up to
	// MaxBackoff. Defaults 100 ms and 5 s, as in Infera.
	Backoff, MaxBackoff time.Duration

	// HoldMessages and HoldBytes bound what is kept of one worker: the events of
	// one that discovery does not know yet, and the last of one that it does
	// (see Lead). Past them the oldest go. Defaults 8,192 and 4 MiB.
	HoldMessages, HoldBytes int
	// HoldWorkers bounds the workers that events are kept of though discovery
	// does not know them, HoldTotal the bytes kept of all workers together. Past
	// them those unknown go that were silent for longest. Defaults 1,024 and
	// 128 MiB.
	HoldWorkers, HoldTotal int
	// HoldFor is how long events of a worker that discovery does not know are
	// kept after its last one. Default 5 min.
	HoldFor time.Duration

	// Lead is how long before its registration a worker may begin to publish:
	// of a worker that appears, or is a new process, older events are those of
	// an earlier process and do not count. Default 10 s.
	Lead time.Duration
	// SeedBlocks is the most blocks taken from the bucket for one rank. Default
	// 4,096.
	SeedBlocks int
	// SeedFor is for how long such blocks count as held without any other sign of
	// it. Default 10 min.
	SeedFor time.Duration
	// NoMarks keeps the subscriber from noting in a bucket of its own which
	// process of each worker it has seen since when; then events of a worker's
	// earlier process count again after a restart of the router. Default false.
	NoMarks bool
}

// DefaultConfig returns the defaults that a zero Config stands for.
func DefaultConfig() Config {
	return Config{
		Broker:      broker.DefaultConfig(),
		ConnectWait: 5 * time.Second, Backoff: 100 * time.Millisecond, MaxBackoff: 5 * time.Second,
		HoldMessages: 8192, HoldBytes: 4 << 20, HoldWorkers: 1024, HoldTotal: 128 << 20, HoldFor: 5 * time.Minute,
		Lead: 10 * time.Second, SeedBlocks: 4096, SeedFor: 10 * time.Minute,
	}
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	c.ConnectWait = cmp.Or(c.ConnectWait, d.ConnectWait)
	c.Backoff = cmp.Or(c.Backoff, d.Backoff)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, d.MaxBackoff)
	c.HoldFor = cmp.Or(c.HoldFor, d.HoldFor)
	c.Lead = cmp.Or(c.Lead, d.Lead)
	c.SeedFor = cmp.Or(c.SeedFor, d.SeedFor)
	c.HoldMessages = cmp.Or(c.HoldMessages, d.HoldMessages)
	c.HoldBytes = cmp.Or(c.HoldBytes, d.HoldBytes)
	c.HoldWorkers = cmp.Or(c.HoldWorkers, d.HoldWorkers)
	c.HoldTotal = cmp.Or(c.HoldTotal, d.HoldTotal)
	c.SeedBlocks = cmp.Or(c.SeedBlocks, d.SeedBlocks)
	return c
}

// Validate reports all faults of c. It opens no file.
func (c Config) Validate() error {
	errs := []error{c.Broker.Validate()}
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("kv events over nats: "+format, args...))
	}
	for _, f := range []struct {
		name string
		bad  bool
	}{
		{"ConnectWait", c.ConnectWait < 0},
		{"Backoff", c.Backoff < 0},
		{"MaxBackoff", c.MaxBackoff < 0},
		{"HoldMessages", c.HoldMessages < 0},
		{"HoldBytes", c.HoldBytes < 0},
		{"HoldWorkers", c.HoldWorkers < 0},
		{"HoldTotal", c.HoldTotal < 0},
		{"HoldFor", c.HoldFor < 0},
		{"Lead", c.Lead < 0},
		{"SeedBlocks", c.SeedBlocks < 0},
		{"SeedFor", c.SeedFor < 0},
	} {
		if f.bad {
			fault("%s is below 0: give 0 for the default", f.name)
		}
	}
	return errors.Join(errs...)
}
