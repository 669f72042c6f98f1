package lab

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pointsman/internal/traffic"
)

// Kinds of generated traces.
const (
	Conversations = "conversations" // chats as in the Mooncake conversation trace, drawn from its statistics
	SharedPrompt  = "shared-prompt" // many short questions behind a few long system prompts
	Bursts        = "bursts"        // shared-prompt, half of it in sudden crowds on a new prompt
	Synthetic     = "synthetic"     // chats and questions about documents all through the hour, with the figures known of the Mooncake synthetic trace
	Documents     = "documents"     // a few questions about each of many long documents, minutes apart
	Agents        = "agents"        // loops that call again within seconds, with all that was before
)

// Kinds returns the kinds that [Generate] knows.
func Kinds() []string {
	return []string{Conversations, Synthetic, Documents, SharedPrompt, Bursts, Agents}
}

// GenerateConfig says what to draw.
type GenerateConfig struct {
	Kind     string // one of [Kinds]
	Requests int    // in all. Default 4,000
	Seed     uint64
	Block    int     // tokens per block. Default 512
	Warm     float64 // share of the first requests, which are not measured. Default 0.1
}

// DefaultGenerateConfig returns an hour of conversations.
func DefaultGenerateConfig() GenerateConfig {
	return GenerateConfig{Kind: Conversations, Requests: 4000, Seed: 1, Block: 512, Warm: 0.1}
}

// Validate reports every fault of c.
func (c GenerateConfig) Validate() error {
	var errs []error
	if !slices.Contains(Kinds(), c.Kind) {
		errs = append(errs, fmt.Errorf("generator %q: want one of %s", c.Kind, strings.Join(Kinds(), ", ")))
	}
	if c.Requests < 1 || c.Requests > MaxRequests {
		errs = append(errs, fmt.Errorf("%d requests: give 1 to %d", c.Requests, MaxRequests))
	}
	if c.Block < 1 || c.Block > 65536 {
		errs = append(errs, fmt.Errorf("blocks of %d tokens: give 1 to 65536", c.Block))
	}
	if !(c.Warm >= 0 && c.Warm < 1) {
		errs = append(errs, fmt.Errorf("warm-up share %g: give 0 to less than 1", c.Warm))
	}
	return errors.Join(errs...)
}

// span is how long a generated trace lasts at its own times.
const span = time.Hour

// Generate draws a trace. Equal configurations give equal traces.
func Generate(c GenerateConfig) (*Trace, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	g := &drawer{c: c, r: rand.New(rand.NewPCG(c.Seed, 5))} //nolint:gosec // a simulation's chance
	var err error
	switch c.Kind {
	case Conversations:
		err = g.conversations()
	case SharedPrompt:
		g.shared(c.Requests)
	case Bursts:
		g.shared(c.Requests / 2)
		g.crowds(c.Requests - len(g.rows))
	case Synthetic:
		g.synthetic()
	case Documents:
		g.documents()
	case Agents:
		g.agents()
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(g.rows, func(a, b row) int { return cmp.Compare(a.at, b.at) })
	return ReadConfig{Block: c.Block, Warm: c.Warm, Seed: c.Seed}.build(c.Kind, g.rows[:min(len(g.rows), c.Requests)])
}

// drawer draws rows.
type drawer struct {
	c       GenerateConfig
	r       *rand.Rand
	rows    []row
	streams uint64
}

// stream names a text that nothing else has. Its k-th block's content is stream+k.
func (g *drawer) stream() uint64 {
	g.streams++
	return g.streams << 24
}

// blocks returns the contents of the full blocks of a prompt that begins with the
// first shared tokens of one text and goes on with another.
func (g *drawer) blocks(text uint64, shared int, own uint64, tokens int) []uint64 {
	ids := make([]uint64, tokens/g.c.Block)
	for k := range ids {
		if (k+1)*g.c.Block <= shared {
			ids[k] = text + uint64(k)
		} else {
			ids[k] = own + uint64(k)
		}
	}
	return ids
}

// about draws a log-normal number of tokens around a median, at most limit.
func (g *drawer) about(median, sigma float64, limit int) int {
	return max(1, min(limit, int(median*math.Exp(sigma*g.r.NormFloat64()))))
}

func (g *drawer) moment(from, to time.Duration) time.Duration {
	return from + time.Duration(g.r.Float64()*float64(to-from))
}

// conversations are those of package traffic, at the trace's own lengths and pauses.
func (g *drawer) conversations() error {
	cfg := traffic.DefaultGenerateConfig()
	cfg.Seed, cfg.Requests, cfg.Over = g.c.Seed, g.c.Requests, span
	cfg.Shrink, cfg.Hurry, cfg.MaxPause, cfg.MaxTurns, cfg.MaxPrompt = 1, 1, span/4, 16, 126_000
	cfg.LengthsOnly = true
	plan, err := traffic.Generate(cfg)
	if err != nil {
		return err //nolint:wrapcheck // it says what
	}
	system := g.stream()
	for i := range plan.Conversations {
		own, when := g.stream(), time.Duration(0)
		for _, q := range plan.Conversations[i].Requests {
			when += q.Wait
			g.rows = append(g.rows, row{
				at: when, prompt: q.Words, output: q.MaxTokens,
				ids: g.blocks(system, traffic.SystemTokens, own, q.Words),
			})
		}
	}
	return nil
}

// shared are questions behind 24 system prompts, of which few are asked most.
func (g *drawer) shared(n int) {
	const prompts = 24
	var texts [prompts]uint64
	var lengths [prompts]int
	for i := range texts {
		texts[i], lengths[i] = g.stream(), 2048+g.r.IntN(12)*1024
	}
	zipf := rand.NewZipf(g.r, 1.3, 2, prompts-1)
	for range n {
		i := zipf.Uint64()
		tokens := lengths[i] + g.about(700, 1, 32_000)
		g.rows = append(g.rows, row{
			at: g.moment(0, span), prompt: tokens, output: g.about(180, .8, 2000),
			ids: g.blocks(texts[i], lengths[i], g.stream(), tokens),
		})
	}
}

// crowds are bursts within two seconds each, on a prompt that is new.
func (g *drawer) crowds(n int) {
	for n > 0 {
		size := min(n, 40+g.r.IntN(160))
		text, shared, begin := g.stream(), 4096+g.r.IntN(8)*1024, g.moment(0, span)
		for range size {
			tokens := shared + g.about(500, .7, 8000)
			g.rows = append(g.rows, row{
				at: begin + g.moment(0, 2*time.Second), prompt: tokens, output: g.about(150, .6, 1000),
				ids: g.blocks(text, shared, g.stream(), tokens),
			})
		}
		n -= size
	}
}

// lead is how long before the trace begins the first sessions may: without it a trace
// would begin with few requests and be busier later.
const lead = 20 * time.Minute

// session begins some time within the trace or before it.
func (g *drawer) session() (text uint64, when time.Duration) {
	return g.stream(), g.moment(-lead, span)
}

// keep adds r if it falls into the trace.
func (g *drawer) keep(r row) {
	if r.at >= 0 && r.at < span {
		g.rows = append(g.rows, r)
	}
}

// synthetic stands in for the Mooncake synthetic trace: short chats, and questions about
// documents that come at any time of the hour, so that most are long forgotten when they
// are asked about again. A few documents are asked about often and most hardly ever. Its
// numbers were fitted to what findings/policy.md tells of the trace itself and of other
// policies on it, not of ours: docs/replay.md has both.
func (g *drawer) synthetic() {
	const (
		chats      = .23          // of the requests
		briefs     = .3           // of the documents
		perRequest = 3000. / 4000 // documents, most of which nobody asks about
	)
	type document struct {
		text   uint64
		tokens int
	}
	docs := make([]document, max(1, int(perRequest*float64(g.c.Requests))))
	asked := make([]float64, len(docs)) // how often, summed up
	sum := 0.0
	for i := range docs {
		docs[i] = document{g.stream(), g.about(22_500, .47, 100_000)}
		if g.r.Float64() < briefs {
			docs[i].tokens = g.about(3200, .35, 100_000)
		}
		sum += math.Exp(1.6 * g.r.NormFloat64())
		asked[i] = sum
	}
	for range g.c.Requests {
		if g.r.Float64() < chats {
			tokens := g.about(150, 1.6, 8000)
			g.rows = append(g.rows, row{
				at: g.moment(0, span), prompt: tokens, output: g.about(260, .8, 2000),
				ids: g.blocks(0, 0, g.stream(), tokens),
			})
			continue
		}
		i, _ := slices.BinarySearch(asked, g.r.Float64()*sum)
		tokens := docs[i].tokens + g.about(300, 1, 2000)
		g.rows = append(g.rows, row{
			at: g.moment(0, span), prompt: tokens, output: g.about(35, 1.3, 2000),
			ids: g.blocks(docs[i].text, docs[i].tokens, g.stream(), tokens),
		})
	}
}

// documents are asked a few questions each, some minutes apart: 15.3k prompt and 149
// output tokens on average, and a ceiling of 64 %.
func (g *drawer) documents() {
	for len(g.rows) < g.c.Requests {
		text, when := g.session()
		length := g.about(11_300, .75, 120_000)
		for ask := true; ask; ask = g.r.Float64() < .66 {
			tokens := length + g.about(200, .7, 2000)
			g.keep(row{
				at: when, prompt: tokens, output: g.about(108, .8, 2000),
				ids: g.blocks(text, length, g.stream(), tokens),
			})
			when += g.moment(10*time.Second, 5*time.Minute)
		}
	}
}

// agents share tools and instructions, and call again a few seconds after each
// answer with the whole history.
func (g *drawer) agents() {
	const common = 6 * 1024
	system := g.stream()
	for len(g.rows) < g.c.Requests {
		own, when := g.session()
		tokens := common + g.about(6000, .9, 60_000)
		for range 2 + g.r.IntN(14) {
			output := g.about(110, .8, 1500)
			g.keep(row{at: when, prompt: tokens, output: output, ids: g.blocks(system, common, own, tokens)})
			tokens = min(tokens+output+g.about(900, 1, 16_000), 120_000)
			when += 2*time.Second + g.moment(0, 20*time.Second)
		}
	}
}

// Burst is a crowd of requests that come at once.
type Burst struct {
	Requests int           // how many; 0 for none
	At       time.Duration // when the first comes, in the trace's own time
	Over     time.Duration // within what time
	Shared   int           // tokens of the prompt that all of them share
	Own      int           // tokens that each has to itself
	Output   int           // tokens of each answer
}

// NewBurst returns a trace of a burst alone: what an idle fleet with empty caches
// makes of it.
func NewBurst(b Burst, block int) (*Trace, error) { return WithBurst(nil, b, block) }

// WithBurst returns t with a burst in it, which is measured apart; nil for the burst
// alone. A burst's times follow those of t when a run changes its rate.
func WithBurst(t *Trace, b Burst, block int) (*Trace, error) {
	name, warm := "burst", 0
	if t != nil {
		name, block, warm = t.Name+"+burst", t.BlockTokens, t.warm
	}
	if b.Requests < 1 || b.Requests > MaxRequests || b.Shared < 0 || b.Own < 1 || b.Output < 1 || b.At < 0 || b.Over < 0 {
		return nil, errors.New("burst: give at least 1 request, 1 token of its own and 1 of its answer, and times from 0 on")
	}
	out := newBuilder(name, block)
	const contents = uint64(1) << 50
	k := 0
	burst := func(until time.Duration) error {
		for ; k < b.Requests; k++ {
			when := b.At + b.Over*time.Duration(k)/time.Duration(b.Requests)
			if when > until {
				return nil
			}
			tokens := b.Shared + b.Own
			ids := make([]uint64, tokens/block)
			for i := range ids {
				ids[i] = contents + uint64(i)
				if (i+1)*block > b.Shared {
					ids[i] += uint64(k+1) << 24 //nolint:gosec // not negative
				}
			}
			if err := out.add(Request{At: when, Prompt: tokens, Output: b.Output, Probe: t != nil}, ids); err != nil {
				return err
			}
		}
		return nil
	}
	if t != nil {
		for i := range t.Requests {
			if err := burst(t.Requests[i].At); err != nil {
				return nil, err
			}
			if err := out.add(t.Requests[i], t.contents(i)); err != nil {
				return nil, err
			}
		}
	}
	if err := burst(1 << 62); err != nil {
		return nil, err
	}
	made, err := out.done(0)
	if err != nil {
		return nil, err
	}
	made.warm = warm
	return made, nil
}

// contents returns what request i's blocks were made of.
func (t *Trace) contents(i int) []uint64 {
	ids := make([]uint64, len(t.Requests[i].blocks))
	for k, n := range t.Requests[i].blocks {
		ids[k] = t.nodes[n].id
	}
	return ids
}
