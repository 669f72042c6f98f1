package prompt

import (
	"errors"
	"fmt"
)

// Config is how prompts without known tokens are approximated.
type Config struct {
	ApproxBlockTokens int     // tokens per approximated block; default 16
	BytesPerToken     float64 // text bytes that count as one token; default 4
}

// DefaultConfig returns the default tuning.
func DefaultConfig() Config { return Config{ApproxBlockTokens: 16, BytesPerToken: 4} }

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	if c.ApproxBlockTokens < 1 || c.ApproxBlockTokens > 4096 {
		errs = append(errs, fmt.Errorf("approximated block size is %d tokens; set it from 1 to 4096", c.ApproxBlockTokens))
	}
	if !(c.BytesPerToken >= 1 && c.BytesPerToken <= 64) { // also refuses NaN
		errs = append(errs, fmt.Errorf("bytes per token is %v; set it from 1 to 64", c.BytesPerToken))
	}
	return errors.Join(errs...)
}

// blockBytes returns the size of an approximated block in bytes.
func (c Config) blockBytes() int {
	return max(1, int(float64(c.ApproxBlockTokens)*c.BytesPerToken))
}
