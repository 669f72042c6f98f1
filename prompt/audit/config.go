package audit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config is when numbers count as drifting and what follows. Start from
// [DefaultConfig]; the zero value is not valid.
type Config struct {
	Window   int           // comparisons that a verdict looks back at. Default 20
	Share    float64       // of Window that must differ in their count for drift; above 0. Default 0.2
	HitShare float64       // of Window that must differ in their hit; it shows, and switches nothing. Default 0.5
	HitSlack int           // tokens by which a hit may differ: blocks in the making, the last block. Default 128
	Retry    time.Duration // until a drifting source is tried again; doubles with each failure. Default 1 min
	MaxRetry time.Duration // where the doubling ends. Default 1 h
	Trial    int           // prompts that a drifting source gets at each trial. Default 20
	Heal     int           // of these that must agree, none differing, for it to be back; at most Trial. Default 5
}

// DefaultConfig returns the default tuning: four differing counts in twenty
// switch a source off.
func DefaultConfig() Config {
	return Config{
		Window: 20, Share: 0.2, HitShare: 0.5, HitSlack: 128,
		Retry: time.Minute, MaxRetry: time.Hour, Trial: 20, Heal: 5,
	}
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Window >= 1 && c.Window <= 4096, "audit window of %d requests: set it from 1 to 4096", c.Window)
	check(c.Share > 0 && c.Share <= 1, "audit share %v: set it above 0, at most 1", c.Share) // also refuses NaN
	check(c.HitShare > 0 && c.HitShare <= 1, "audit hit share %v: set it above 0, at most 1", c.HitShare)
	check(c.HitSlack >= 0, "audit hit slack of %d tokens: set it to 0 or more", c.HitSlack)
	check(c.Retry > 0, "audit retry after %v: set a positive duration", c.Retry)
	check(c.MaxRetry >= c.Retry, "audit longest retry %v: set at least the first, %v", c.MaxRetry, c.Retry)
	check(c.Heal >= 1 && c.Trial >= c.Heal, "audit trial of %d prompts, of which %d must agree: set at least 1, and no more than the trial has", c.Trial, c.Heal)
	return errors.Join(errs...)
}

// bound is how many of Window must differ for a share of it.
func (c *Config) bound(share float64) int {
	return max(1, int(math.Ceil(share*float64(c.Window))))
}
