package config

import (
	"errors"
	"fmt"
	"strings"
)

// contradictions lists the settings that each are in range and together make no
// sense. It is the one place for such checks across rooms; what concerns one
// room alone is in that room's Validate.
//
// A check tells what an operator wrote from what is only a default by
// [Config.said].
func (c *Config) contradictions() []error {
	var errs []error
	for _, check := range []func(*Config) error{
		(*Config).prefillWithoutPairs,
		(*Config).exactWithoutEvents,
		(*Config).shareWithoutTenants,
		(*Config).queueWithoutCaps,
		(*Config).warmupWithoutCaps,
	} {
		if err := check(c); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// said reports whether any source says something of the setting with that flag
// name.
func (c *Config) said(name string) bool { return c.origin[name].said }

// exactWithoutEvents refuses exact matching without the events it goes by.
func (c *Config) exactWithoutEvents() error {
	if c.KVExact == "on" && c.KVEventTransport == "none" {
		return errors.New("--kv-exact-mode on needs the events that --kv-event-transport none leaves out")
	}
	return nil
}

// prefillWithoutPairs refuses the prefill leg's settings in a pool that has no
// such leg (the seed, section 4: they require pd_disagg_mode).
func (c *Config) prefillWithoutPairs() error {
	if c.PDMode != "off" {
		return nil
	}
	var named []string
	for _, name := range []string{"prefill-timeout", "pd-first-token-timeout", "pd-skip-prefill-tokens"} {
		if c.said(name) {
			named = append(named, "--"+name)
		}
	}
	if len(named) == 0 {
		return nil
	}
	return fmt.Errorf("%s: means nothing while --pd-disagg-mode is off: leave it out, or let the mode be auto", strings.Join(named, ", "))
}
