package picker

import (
	"encoding/json"
	"time"

	"pointsman/fleet"
	"pointsman/kvindex"
)

// Record explains one pick: every candidate's columns, costs and exclusion. All
// amounts are in tokens unless their name says otherwise; costs are in CostUnit.
type Record struct {
	Time         time.Time `json:"time"`
	RequestID    string    `json:"request_id,omitempty"`
	Model        string    `json:"model"`
	Policy       string    `json:"policy"`
	Reason       string    `json:"reason,omitempty"`  // how the prompt was known
	Error        string    `json:"error,omitempty"`   // why no worker was chosen
	Chosen       string    `json:"chosen,omitempty"`  // key of the target
	Leg          string    `json:"leg,omitempty"`     // prefill or decode: the pick chose a pair, and has a record for each
	Partner      string    `json:"partner,omitempty"` // key of the pair's other target
	AllOpen      bool      `json:"all_open,omitempty"`
	OverCap      bool      `json:"over_cap,omitempty"` // a cap that is not enforced would have left the chosen one out
	Pinned       bool      `json:"pinned,omitempty"`   // chosen because it served the conversation before
	Approx       bool      `json:"approx,omitempty"`
	ByLoad       bool      `json:"by_load,omitempty"`
	Retention    string    `json:"retention"`
	PromptTokens int       `json:"prompt_tokens"` // as the request said
	BlockTokens  int       `json:"block_tokens"`  // of these, in full blocks
	HitTokens    int       `json:"hit_tokens"`    // of these, believed to be on the chosen worker
	CostUnit     string    `json:"cost_unit,omitempty"`
	FleetRate    float64   `json:"fleet_rate,omitempty"` // te per ms, of the candidates on average
	// ExpectedOutput is how many tokens the answer is expected to have, where the policy
	// or its shadow goes by time.
	ExpectedOutput float64     `json:"expected_output_tokens,omitempty"`
	TextWeight     float64     `json:"text_weight"` // after role, retention and modality
	ImageWeight    float64     `json:"image_weight"`
	Candidates     []Candidate `json:"candidates"`
	Prefill        *Record     `json:"prefill,omitempty"` // of [Picker.Dry]: the prefill leg of the pair
	Shadow         *Shadow     `json:"shadow,omitempty"`
}

// Shadow is what the second policy would have done in a pick's place: see
// [Config].Shadow.
type Shadow struct {
	Policy    string  `json:"policy"`
	Chosen    string  `json:"chosen,omitempty"`      // key of the target; "" when the pick was no policy's
	MS        float64 `json:"difference_ms"`         // its estimated time to first token less the pick's
	HitTokens float64 `json:"difference_hit_tokens"` // likewise
}

// Candidate is one row of a [Record].
type Candidate struct {
	Worker    string  `json:"worker_id"`
	Rank      int     `json:"rank"` // -1 for none
	Excluded  string  `json:"excluded,omitempty"`
	Chosen    bool    `json:"chosen,omitempty"`
	Cost      float64 `json:"cost"` // the lowest wins
	Terms     []Term  `json:"terms,omitempty"`
	Mode      string  `json:"mode"` // of the index: exact, predicted or none
	BlockSize int     `json:"block_size"`
	Hit       float64 `json:"hit"`
	Promised  float64 `json:"promised,omitempty"` // predicted hit that a burst has used up: not in hit
	Miss      float64 `json:"miss"`
	Images    float64 `json:"missing_images,omitempty"` // images it has not seen
	Active    float64 `json:"active"`
	Recent    float64 `json:"recent"`
	Requests  float64 `json:"requests"` // in flight
	Waiting   float64 `json:"waiting"`
	Decoders  float64 `json:"decoders"` // requests past their first token
	Context   float64 `json:"context"`

	// Of a policy, or a shadow, that goes by time. Work is in token-equivalents (te).
	Queue      float64 `json:"queue_te,omitempty"`    // to prefill before it would begin
	Work       float64 `json:"work_te,omitempty"`     // that the request is to it
	Rate       float64 `json:"rate,omitempty"`        // te that it prefills per ms
	RateSource string  `json:"rate_source,omitempty"` // start, private or reported
	// Of another router's policy.
	Queued float64 `json:"queued,omitempty"` // requests its engine has not begun
	Usage  float64 `json:"usage,omitempty"`  // share of its KV memory
	Stored float64 `json:"stored,omitempty"` // tokens known to be in its cache
}

// Term is one scorer's share of a cost.
type Term struct {
	Scorer string  `json:"scorer"`
	Cost   float64 `json:"cost"`
}

// String returns the record as one line of JSON.
func (r Record) String() string {
	line, err := json.Marshal(r)
	if err != nil {
		return err.Error() // an infinite cost: the terms say which
	}
	return string(line)
}

// Records returns the explain records that are kept, the newest first. Each is
// copied under the picker's lock, and built outside it.
func (p *Picker) Records() []Record {
	p.mu.Lock()
	held, next := p.ring.held, p.ring.next
	p.mu.Unlock()
	records := make([]Record, 0, held)
	var t trace
	for i := range held {
		p.mu.Lock()
		slots := p.ring.slots
		t.copyFrom(&slots[(next-1-i+len(slots))%len(slots)])
		p.mu.Unlock()
		records = append(records, t.record())
	}
	return records
}

// Dry returns what [Picker.Pick] would do with req at now, and does none of it.
// A request that would be refused has its Error set.
func (p *Picker) Dry(now time.Time, req *Request) Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	tab := p.sync()
	p.refresh(now)
	pl, err := tab.pool(req)
	if err != nil {
		return Record{Time: now, RequestID: req.ID, Model: req.Model, Policy: p.policy.name, Error: err.Error()}
	}
	s := &p.sel
	paired, err := p.plan(now, req, tab, pl)
	switch {
	case err != nil:
		s.err = err
		s.blank()
		return s.record()
	case paired:
		return p.dryPair(req)
	}
	p.recall(now, req)
	first := func(int) int { return 0 }
	s.chosen = s.choose(first)
	s.ask(s.chosen, first)
	s.reason = s.label(req)
	return s.record()
}

// record writes t out.
func (t *trace) record() Record {
	rec := Record{
		Time: t.at, RequestID: string(t.id), Model: t.pool.model, Policy: t.policy.name,
		Reason: t.reason, AllOpen: t.allOpen, OverCap: t.overCap, Pinned: t.pinned > 0 && t.pinned == t.chosen+1, Approx: t.approx, ByLoad: t.byLoad,
		Retention: t.retention.String(), PromptTokens: t.tokens, BlockTokens: int(t.total),
		TextWeight: t.weights.text, ImageWeight: t.weights.image,
		Candidates: make([]Candidate, 0, len(t.rows)+len(t.pool.rest)),
	}
	if t.err != nil {
		rec.Error = t.err.Error()
	} else {
		rec.CostUnit = t.policy.unit
	}
	if t.in.FleetPace > 0 {
		rec.FleetRate, rec.ExpectedOutput = 1/t.in.FleetPace, t.in.Answer
	}
	rec.Shadow = t.shadow.record(t.rows)
	if rec.Partner = t.partner; t.role != fleet.Mixed {
		rec.Leg = t.role.String()
	}
	cost := t.price(t.policy, nil)
	for i, r := range t.rows {
		c := t.candidate(i, r)
		c.Cost = cost[i]
		if i == t.chosen {
			c.Chosen = true
			rec.Chosen, rec.HitTokens = r.Key, int(c.Hit+c.Promised)
		}
		rec.Candidates = append(rec.Candidates, c)
	}
	for k, term := range t.policy.terms {
		clear(cost)
		t.term(&t.policy.terms[k], cost)
		for i := range t.rows {
			rec.Candidates[i].Terms = append(rec.Candidates[i].Terms, Term{term.name, cost[i]})
		}
	}
	return t.others(rec)
}

func (t *trace) candidate(i int, r *row) Candidate {
	in := &t.in
	c := Candidate{
		Worker: r.Worker.ID, Rank: r.Rank, Excluded: t.why[i].String(),
		Mode: modeName(t.mode[i]), BlockSize: t.size[i],
		Hit: in.Hit[i], Promised: float64(t.promised[i]), Miss: in.Miss[i], Images: in.Missing[i],
		Active: in.Active[i], Recent: in.Recent[i], Requests: in.Requests[i],
		Waiting: in.Waiting[i], Decoders: in.Decoders[i], Context: in.Context[i],
	}
	if len(in.Pace) > 0 && in.Pace[i] > 0 {
		c.Queue, c.Work, c.Rate, c.RateSource = in.Queue[i], in.Work[i], 1/in.Pace[i], t.source[i].String()
	}
	if len(in.Draw) > 0 {
		c.Queued, c.Usage, c.Stored = in.Queued[i], in.Usage[i], in.Stored[i]
	}
	return c
}

// others adds the targets of the model that were no candidates at all.
func (t *trace) others(rec Record) Record {
	for _, r := range t.pool.rest {
		if len(t.rows) > 0 && t.rows[0].Worker == r.Worker {
			continue // named directly
		}
		if t.role != fleet.Mixed && t.role == r.Worker.Role && r.Worker.Status == fleet.Active {
			continue // a candidate of the leg
		}
		why := otherRole
		if r.Worker.Status != 0 {
			why = inactive
		}
		rec.Candidates = append(rec.Candidates, Candidate{
			Worker: r.Worker.ID, Rank: r.Rank, Excluded: why.String(), Mode: modeName(kvindex.None),
		})
	}
	return rec
}

func modeName(m kvindex.Mode) string {
	switch m {
	case kvindex.Exact:
		return "exact"
	case kvindex.Predicted:
		return "predicted"
	case kvindex.None:
	}
	return "none"
}
