package main

import (
	"fmt"
	"strconv"

	"pointsman/internal/stack"
)

// fleetKind is what the demo's engines are and how they are reached.
type fleetKind string

const (
	httpFleet fleetKind = "http" // requests over HTTP, cache events over ZMQ
	natsFleet fleetKind = "nats" // requests through a NATS broker
	pdFleet   fleetKind = "pd"   // half of the engines prefill, half decode, over HTTP
)

// brokerEvents says whether the cache events of a natsFleet come through the
// broker, too.
const brokerEvents = true

func (k fleetKind) validate(workers int) error {
	least := 2 // one is killed
	switch k {
	case httpFleet, natsFleet:
	case pdFleet:
		least = 4
	default:
		return fmt.Errorf("--fleet %q: give http, nats or pd", string(k))
	}
	if workers < least {
		return fmt.Errorf("--workers: give at least %d, one is killed", least)
	}
	return nil
}

// Prompt tokens that an engine of the demo computes in a second.
const (
	easyRate   = 4000 // a cache hit is worth something next to what processes on two cores cost
	loadedRate = 1700 // requests queue
)

// dress makes cfg a fleet of kind k with n engines, slow ones if it is loaded.
func (k fleetKind) dress(cfg *stack.Config, n int, loaded bool) {
	rate := easyRate
	if loaded {
		rate = loadedRate
	}
	engines := func() []string {
		return []string{"--prefill-tokens-per-s", strconv.Itoa(rate), "--block-size", strconv.Itoa(demoBlock)}
	}
	switch k {
	case natsFleet:
		cfg.Broker = &stack.BrokerConfig{Events: brokerEvents}
	case pdFleet:
		rate *= 2 // half of the engines compute all prompts
		cfg.Workers = stack.PairedWorkers(n/2, n-n/2, engines()...)
		return
	case httpFleet:
	}
	cfg.Workers = stack.MixedWorkers(n, engines()...)
}
