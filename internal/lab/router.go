package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"pointsman/admission"
	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/kvindex"
	"pointsman/picker"
)

// modelName is what every request asks for.
const modelName = "replayed"

// workerIDs names n workers.
func workerIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("worker-%03d:8000", i)
	}
	return ids
}

// router is one picker with all that a program gives it.
type router struct {
	id       string // as forwarders know it by
	picker   *picker.Picker
	feeds    []*kvindex.Feed
	index    *kvindex.Index
	gate     *admission.Gate
	breakers *breaker.Set
	rand     *rand.Rand // of what gets lost on the way to it
}

// newRouter makes the n-th router of a run over the workers in store. clock says what
// time it is.
func newRouter(s *Setup, n int, store *fleet.Store, ids []string, clock func() time.Time) (*router, error) {
	brk := s.Breaker
	brk.Seed = s.Seed + uint64(n) //nolint:gosec // a small number
	r := &router{
		id:       "router-" + strconv.Itoa(n),
		index:    kvindex.New(s.Index),
		breakers: breaker.NewSet(brk),
		gate:     admission.NewGateAt(s.Admission, clock),
		rand:     rand.New(rand.NewPCG(s.Seed, uint64(1000+n))), //nolint:gosec // a simulation's chance
	}
	cfg := s.Policy.config()
	cfg.ExplainRing = 0
	cfg.Caps = picker.Caps{Worker: s.Picker.WorkerCap, Enforce: s.Picker.WorkerCap > 0}
	cfg.Latency = s.Picker.Latency
	cfg.Seed = s.Seed + uint64(n) + 1 //nolint:gosec // a small number
	var err error
	if r.picker, err = picker.New(cfg, store, r.index, r.breakers); err != nil {
		return nil, err //nolint:wrapcheck // it says what
	}
	r.picker.OnRelease(r.gate.Wake)
	for _, id := range ids {
		feed := r.index.Feed(id)
		feed.Connected(clock())
		r.feeds = append(r.feeds, feed)
	}
	return r, nil
}

// newFleet returns the fleet that every router of a run sees.
func newFleet(ids []string, blockTokens int) *fleet.Store {
	store := new(fleet.Store)
	workers := make([]*fleet.Worker, len(ids))
	for i, id := range ids {
		workers[i] = &fleet.Worker{
			ID: id, URL: "http://" + id, Host: id[:len(id)-len(":8000")], Port: 8000,
			Model: modelName, Engine: fleet.VLLM, BlockSize: blockTokens, DPRank: -1, Transport: "http",
		}
	}
	fleet.NewFeed(store).Replace(workers)
	return store
}

// pick asks the picker, in the words of the gate.
func (r *router) pick(now time.Time, req *picker.Request) (picker.Decision, error) {
	d, err := r.picker.Pick(now, req)
	switch {
	case errors.Is(err, picker.ErrFull):
		return d, admission.ErrFull
	case errors.Is(err, picker.ErrNoWorker):
		return d, fmt.Errorf("%w: %w", admission.ErrNoCapacity, err)
	}
	return d, err //nolint:wrapcheck // as the doors do
}
