package kvindex

import (
	"errors"
	"time"
)

// Config is the index's tuning. The zero value means the defaults.
type Config struct {
	// PredictedTTL is for how long a picked prompt is assumed to be on its
	// target without any sign of it. 0 means 30 s.
	PredictedTTL time.Duration
	// PresentTTL is for how long a prompt whose first token was seen is assumed
	// to be there unless an event says otherwise. 0 means 10 min.
	PresentTTL time.Duration
	// PredictedBlocks bounds the predicted blocks of one target; the least
	// recently predicted go first. 0 means 65,536.
	PredictedBlocks int
	// SilentAfter is how long after a first token an engine that publishes
	// events may take to report blocks it did not have; past it the target
	// counts as [Predicted] until events arrive again. 0 means 60 s.
	SilentAfter time.Duration
}

// DefaultConfig returns the defaults that a zero Config stands for.
func DefaultConfig() Config {
	return Config{
		PredictedTTL:    30 * time.Second,
		PresentTTL:      10 * time.Minute,
		PredictedBlocks: 1 << 16,
		SilentAfter:     time.Minute,
	}
}

// Validate reports all faults of c at once.
func (c Config) Validate() error {
	var errs []error
	if c.PredictedTTL < 0 {
		errs = append(errs, errors.New("kvindex: PredictedTTL is negative: give a duration, or 0 for the default"))
	}
	if c.PresentTTL < 0 {
		errs = append(errs, errors.New("kvindex: PresentTTL is negative: give a duration, or 0 for the default"))
	}
	if c.PredictedBlocks < 0 {
		errs = append(errs, errors.New("kvindex: PredictedBlocks is negative: give a number of blocks, or 0 for the default"))
	}
	if c.SilentAfter < 0 {
		errs = append(errs, errors.New("kvindex: SilentAfter is negative: give a duration, or 0 for the default"))
	}
	return errors.Join(errs...)
}

// withDefaults replaces what is not positive, so that an unvalidated Config
// still gives a working index.
func (c Config) withDefaults() Config {
	d := DefaultConfig()
	if c.PredictedTTL <= 0 {
		c.PredictedTTL = d.PredictedTTL
	}
	if c.PresentTTL <= 0 {
		c.PresentTTL = d.PresentTTL
	}
	if c.PredictedBlocks <= 0 {
		c.PredictedBlocks = d.PredictedBlocks
	}
	if c.SilentAfter <= 0 {
		c.SilentAfter = d.SilentAfter
	}
	return c
}
