package remote

import (
	"errors"
	"fmt"
	"time"
)

// Config is the tuning of the remote tokenizer.
type Config struct {
	Timeout        time.Duration // for all of one Tokenize; default 50 ms
	Concurrency    int           // exchanges open at a time; default 32
	MaxPromptBytes int           // larger messages or prompts are not asked for; default 64 KiB
	CacheBytes     int           // memory for answers; 0 keeps none; default 64 MiB
	CacheTTL       time.Duration // age at which an answer is forgotten; default 10 min
	Failures       int           // failures in a row after which a model is left alone; default 3
	Cooldown       time.Duration // for how long; default 5 s
}

// DefaultConfig returns the default tuning.
func DefaultConfig() Config {
	return Config{
		Timeout:        50 * time.Millisecond,
		Concurrency:    32,
		MaxPromptBytes: 64 << 10,
		CacheBytes:     64 << 20,
		CacheTTL:       10 * time.Minute,
		Failures:       3,
		Cooldown:       5 * time.Second,
	}
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, format string, v any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, v))
		}
	}
	need(c.Timeout > 0, "tokenizer timeout is %v; set a positive duration", c.Timeout)
	need(c.Concurrency > 0, "tokenizer concurrency is %d; set at least 1", c.Concurrency)
	need(c.MaxPromptBytes > 0, "tokenizer prompt limit is %d bytes; set at least 1", c.MaxPromptBytes)
	need(c.CacheBytes >= 0, "tokenizer cache is %d bytes; set 0 or more", c.CacheBytes)
	need(c.CacheTTL > 0, "tokenizer cache age is %v; set a positive duration", c.CacheTTL)
	need(c.Failures > 0, "tokenizer failure threshold is %d; set at least 1", c.Failures)
	need(c.Cooldown > 0, "tokenizer cooldown is %v; set a positive duration", c.Cooldown)
	return errors.Join(errs...)
}
