package config

import (
	"errors"
	"fmt"
	"net"
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
		(*Config).peersWithoutDoor,
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

// peersWithoutDoor refuses replicas that would ask each other in vain: at no port, or
// from another machine without the token that such a question needs.
func (c *Config) peersWithoutDoor() error {
	if c.Program&EPP == 0 || c.Reports.Peers == "" {
		return nil
	}
	if c.MetricsPort == 0 {
		return errors.New("--warm-peers with --metrics-port 0: a replica answers the others at that port")
	}
	for peer := range strings.SplitSeq(c.Reports.Peers, ",") {
		if host, _, err := net.SplitHostPort(strings.TrimSpace(peer)); err == nil && !loopback(host) && c.AdminToken == "" {
			return fmt.Errorf("--warm-peers %s needs --admin-token: without it a replica answers its own machine only", c.Reports.Peers)
		}
	}
	return nil
}
