package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// pdLeg is what the demo reads of an engine's receipt for one leg of a request.
type pdLeg struct {
	Request string `json:"request_id"`
	Leg     string `json:"leg"` // prefill or decode
	Worker  string `json:"worker_id"`
	Room    string `json:"room"`
	Partner string `json:"partner"` // who gave or took the KV cache; "" for nobody
	Outcome string `json:"outcome"`
	Prompt  int    `json:"prompt_tokens"`
	Cached  int    `json:"cached_tokens"`
}

// legsOf asks every engine but the victim for its receipts.
func legsOf(ctx context.Context, s *stack.Stack, victim string) ([]pdLeg, error) {
	var all []pdLeg
	for _, w := range s.Workers {
		if w.ID == victim {
			continue
		}
		raw, err := stack.Get(ctx, http.DefaultClient, w.Control+"/receipts?format=array")
		if err != nil {
			return nil, fmt.Errorf("receipts: %w", err)
		}
		var legs []pdLeg
		if err := json.Unmarshal(raw, &legs); err != nil {
			return nil, fmt.Errorf("receipts of %s: %w", w.ID, err)
		}
		all = append(all, legs...)
	}
	return all, nil
}

// pairing is what the engines' receipts say of the two legs of each request.
type pairing struct {
	pairs   int     // rooms with one prefill and one decode leg
	lost    int     // legs that ended with the killed engine, whose receipts are gone
	orphans []pdLeg // the others: legs without their partner, or of a room that came twice
	hit     float64 // cached of all prompt tokens, where they are computed
}

// pair looks for the partner of every leg. victim is "" when no engine was
// killed.
func pair(legs []pdLeg, results []traffic.Result, victim string) pairing {
	rooms := make(map[string][]pdLeg)
	served := make(map[string]bool) // requests with a pair
	var p pairing
	prompt, cached := 0, 0
	for _, l := range legs {
		rooms[l.Room] = append(rooms[l.Room], l)
		if l.Leg == "prefill" && l.Outcome == "complete" {
			prompt, cached = prompt+l.Prompt, cached+l.Cached
		}
	}
	if prompt > 0 {
		p.hit = float64(cached) / float64(prompt)
	}
	for room, met := range rooms {
		if room != "" && len(met) == 2 && met[0].meets(&met[1]) {
			p.pairs++
			served[met[0].Request] = true
			delete(rooms, room)
		}
	}
	atVictim := make(map[string]bool) // requests that ended there
	for i := range results {
		atVictim[results[i].Request.ID] = victim != "" && results[i].Worker == victim
	}
	for room, met := range rooms {
		for _, l := range met {
			// A prefill leg was for the killed engine if that took its cache, or if it
			// was called off and the request ended there or was served by another pair.
			calledOff := l.Partner == "" && l.Outcome == "aborted" && (atVictim[l.Request] || served[l.Request])
			if victim != "" && l.Leg == "prefill" && room != "" && len(met) == 1 && (l.Partner == victim || calledOff) {
				p.lost++
				continue
			}
			p.orphans = append(p.orphans, l)
		}
	}
	slices.SortFunc(p.orphans, func(a, b pdLeg) int { return strings.Compare(a.Request+a.Leg, b.Request+b.Leg) })
	return p
}

// meets reports whether l and o are the two legs of one request, and name each
// other.
func (l *pdLeg) meets(o *pdLeg) bool {
	return l.Leg != o.Leg && l.Request == o.Request && l.Partner == o.Worker && o.Partner == l.Worker
}

// unpaired returns what is wrong about a run's legs.
func unpaired(o *outcome) []error {
	if o.pairing == nil {
		return nil
	}
	var errs []error
	for _, l := range o.pairing.orphans[:min(maxFailures, len(o.pairing.orphans))] {
		errs = append(errs, fmt.Errorf("demo: the %s leg of %s at %s, room %q, is without its partner: %s, met %q", l.Leg, l.Request, l.Worker, l.Room, l.Outcome, l.Partner))
	}
	if seen := o.pairing.pairs + o.pairing.lost; seen < o.summary.OK {
		errs = append(errs, fmt.Errorf("demo: %d whole answers, but only %d pairs of legs", o.summary.OK, seen))
	}
	return errs
}
