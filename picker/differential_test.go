package picker_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/kvindex"
	"pointsman/picker"
)

// infera restates the cost function of Infera's kv-aware policy (contract,
// infera.md §5.1) in blocks, with maps and no thought of cost. Its view of a
// worker is what the worker's events said and what was sent there.
type infera struct {
	weight float64
	ids    []string
	view   map[string]map[kvindex.Hash]bool
	active map[string]map[kvindex.Hash]int
	plain  map[string]int
	recent map[string]float64
	images map[string][]uint64 // most recent last
}

func newInfera(weight float64, ids []string) *infera {
	m := &infera{
		weight: weight, ids: ids,
		view: map[string]map[kvindex.Hash]bool{}, active: map[string]map[kvindex.Hash]int{},
		plain: map[string]int{}, recent: map[string]float64{}, images: map[string][]uint64{},
	}
	for _, id := range ids {
		m.view[id], m.active[id] = map[kvindex.Hash]bool{}, map[kvindex.Hash]int{}
	}
	return m
}

func (m *infera) hits(id string, blocks []kvindex.Hash) int {
	for i, h := range blocks {
		if !m.view[id][h] {
			return i
		}
	}
	return len(blocks)
}

func (m *infera) inFlight(id string) float64 { return float64(len(m.active[id]) + m.plain[id]) }

func (m *infera) load(id string) float64 { return m.inFlight(id) + m.recent[id] }

func (m *infera) cost(id string, req *picker.Request, blocks []kvindex.Hash) float64 {
	w := m.weight
	switch req.Retention {
	case picker.RetentionLong:
		w *= 2
	case picker.RetentionNone:
		w *= 0.1
	}
	text, unseen := w, 0
	if req.Multimodal {
		text = 0
	}
	for _, k := range req.Images {
		if !slices.Contains(m.images[id], k) {
			unseen++
		}
	}
	return text*float64(len(blocks)-m.hits(id, blocks)) + w*48*float64(unseen) + m.load(id)
}

// winners returns every worker that may be chosen: the cheapest; among these,
// those with something of the prompt and no more in flight than any with
// nothing; among these, the least loaded.
func (m *infera) winners(req *picker.Request, blocks []kvindex.Hash) []string {
	const eps = 1e-8
	least := func(ids []string, value func(id string) float64) []string {
		low := math.Inf(1)
		for _, id := range ids {
			low = min(low, value(id))
		}
		return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return value(id) > low+eps*(1+math.Abs(low)) })
	}
	ids := least(m.ids, func(id string) float64 { return m.cost(id, req, blocks) })
	var warm []string
	for _, id := range ids {
		if m.hits(id, blocks) > 0 && !slices.ContainsFunc(ids, func(cold string) bool {
			return m.hits(cold, blocks) == 0 && m.inFlight(cold) < m.inFlight(id)
		}) {
			warm = append(warm, id)
		}
	}
	if len(warm) > 0 {
		ids = warm
	}
	return least(ids, m.load)
}

// took is what a pick of id does.
func (m *infera) took(id string, req *picker.Request, blocks []kvindex.Hash) {
	for k, v := range m.recent {
		if v *= 0.97; v < 1e-3 {
			delete(m.recent, k)
		} else {
			m.recent[k] = v
		}
	}
	charge := float64(len(blocks) - m.hits(id, blocks))
	if len(blocks) == 0 {
		charge = 1
	}
	if charge > 0 {
		m.recent[id] += charge
	}
	m.start(id, blocks, 1)
	if !req.Multimodal {
		m.hold(id, blocks)
	}
	for _, k := range req.Images {
		list := slices.DeleteFunc(m.images[id], func(x uint64) bool { return x == k })
		list = append(list, k)
		m.images[id] = list[max(0, len(list)-256):]
	}
}

func (m *infera) hold(id string, blocks []kvindex.Hash) {
	for _, h := range blocks {
		m.view[id][h] = true
	}
}

func (m *infera) start(id string, blocks []kvindex.Hash, by int) {
	if len(blocks) == 0 {
		m.plain[id] += by
	}
	for _, h := range blocks {
		if m.active[id][h] += by; m.active[id][h] == 0 {
			delete(m.active[id], h)
		}
	}
}

// TestRankingIsInferas plays random conversations on fleets of one block size
// against the restatement: every candidate's cost is Infera's times the block
// size, and the choice is one that Infera's order, with our rule for ties, allows.
func TestRankingIsInferas(t *testing.T) {
	const conversations = 2000
	picks, ties := 0, 0
	for seed := range uint64(conversations) {
		n, tied := converse(t, seed)
		picks, ties = picks+n, ties+tied
		if t.Failed() {
			return
		}
	}
	t.Logf("%d conversations, %d picks, %d of them among equals", conversations, picks, ties)
	if ties == 0 || ties == picks {
		t.Error("the conversations do not try both ties and clear choices")
	}
}

type flight struct {
	d      picker.Decision
	id     string
	blocks []kvindex.Hash
}

func converse(t *testing.T, seed uint64) (picks, ties int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 7))
	size := []int{1, 16, 64}[rng.IntN(3)]
	weight := []float64{0, 0.3, 1, 1, 2, 20}[rng.IntN(6)]
	var ids []string
	fleet := workers()
	for i := range 1 + rng.IntN(6) {
		w := worker(fmt.Sprint("w", i))
		w.BlockSize = size
		fleet = append(fleet, w)
		ids = append(ids, w.ID)
	}
	cfg := config(picker.KVAware, weight)
	cfg.Seed, cfg.ExplainRing = seed+1, 1
	w := newWorld(t, cfg, fleet...)
	m := newInfera(weight, ids)
	prompts := newPrompts(rng, size)
	for range rng.IntN(4) { // caches that were warm before
		id, p := ids[rng.IntN(len(ids))], prompts.next()
		w.index.Feed(id).Connected(w.now)
		w.index.Feed(id).Apply(&kvindex.Batch{Rank: -1, Events: []kvindex.Event{{
			Kind: kvindex.Stored, Hashes: p.hashes, Tokens: p.tokens[:len(p.hashes)*size], BlockSize: size,
		}}}, w.now)
		m.hold(id, p.hashes)
	}
	var flying []flight
	end := func(k int) {
		f := flying[k]
		f.d.Done(w.now, []breaker.Outcome{breaker.Success, breaker.Neutral}[rng.IntN(2)])
		m.start(f.id, f.blocks, -1)
		flying = append(flying[:k], flying[k+1:]...)
	}
	for range 40 {
		w.now = w.now.Add(time.Duration(rng.IntN(400)) * time.Millisecond)
		if len(flying) > 0 && rng.IntN(2) == 0 {
			end(rng.IntN(len(flying)))
		}
		p := prompts.next()
		req := &picker.Request{
			ID: "r", Model: "m", Reason: "exact", Tokens: len(p.tokens),
			Blocks:    []kvindex.Blocks{{Size: size, Hashes: p.hashes}},
			Retention: picker.Retention(rng.IntN(8) % 4),
		}
		switch rng.IntN(10) {
		case 0: // a prompt that nobody could read
			req.Blocks = nil
		case 1:
			req.Multimodal = true
			for range 1 + rng.IntN(3) {
				req.Images = append(req.Images, uint64(rng.IntN(12)))
			}
			slices.Sort(req.Images)
			req.Images = slices.Compact(req.Images)
		}
		blocks := p.hashes
		if req.Blocks == nil {
			blocks = nil
		}
		winners := m.winners(req, blocks)
		want := map[string]float64{}
		for _, id := range ids {
			want[id] = m.cost(id, req, blocks) * float64(size)
		}
		d := w.pick(req)
		d.FirstToken(w.now) // else a burst's promises would count for less, by our own rule
		for _, c := range w.p.Records()[0].Candidates {
			if math.Abs(c.Cost-want[c.Worker]) > 1e-6*(1+want[c.Worker]) {
				t.Errorf("seed %d, pick %d: %s costs %g tokens, Infera's formula says %g", seed, picks, c.Worker, c.Cost, want[c.Worker])
			}
		}
		if !slices.Contains(winners, d.Worker.ID) {
			t.Errorf("seed %d, pick %d: %s was chosen, want one of %v", seed, picks, d.Worker.ID, winners)
		}
		if t.Failed() {
			return picks, ties
		}
		if picks++; len(winners) > 1 {
			ties++
		}
		m.took(d.Worker.ID, req, blocks)
		flying = append(flying, flight{d, d.Worker.ID, blocks})
	}
	for len(flying) > 0 {
		end(0)
	}
	for _, c := range w.p.Dry(w.now, &picker.Request{Model: "m"}).Candidates {
		if c.Active != 0 || c.Requests != 0 || c.Waiting != 0 || c.Decoders != 0 || c.Context != 0 {
			t.Errorf("seed %d: at the end %+v", seed, c)
		}
	}
	return picks, ties
}

// prompts are growing conversations: some begin alike, some go on.
type prompts struct {
	rng  *rand.Rand
	size int
	past [][]uint32
}

type promptOf struct {
	tokens []uint32
	hashes []kvindex.Hash
}

func newPrompts(rng *rand.Rand, size int) *prompts { return &prompts{rng: rng, size: size} }

func (p *prompts) next() promptOf {
	var ids []uint32
	if len(p.past) > 0 && p.rng.IntN(4) > 0 { // go on from a former one, or from a part of it
		from := p.past[p.rng.IntN(len(p.past))]
		keep := len(from)
		if p.rng.IntN(2) == 0 {
			keep = p.rng.IntN(len(from) + 1)
		}
		ids = slices.Clone(from[:keep])
	}
	for range p.rng.IntN(6 * p.size) {
		ids = append(ids, uint32(p.rng.IntN(3))) // few values: some meet again by chance
	}
	p.past = append(p.past, ids)
	return promptOf{ids, kvindex.HashTokens(nil, 0, ids, p.size)}
}
