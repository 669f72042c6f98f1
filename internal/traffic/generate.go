package traffic

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// GenerateConfig says what conversations to draw.
type GenerateConfig struct {
	Seed     uint64
	Requests int           // requests in all; conversations are cut short to meet it. Default 400
	Over     time.Duration // conversations start, and their pauses end, within this time. Default 25 s

	// Shrink divides every length of the trace, so that two cores can serve in
	// seconds what took a cluster an hour. Default 16: a median prompt of about
	// 430 tokens.
	Shrink int
	// Hurry divides the time between an answer and the next question. Default 60:
	// a median of two seconds.
	Hurry float64
	// MaxPause bounds that time. Default 5 s.
	MaxPause time.Duration
	// MaxTurns ends conversations that would outlast the plan. Default 8.
	MaxTurns int
	// MaxPrompt bounds a prompt, in words before chat template. Default 7800, which is the
	// longest prompt of the trace, shrunk.
	MaxPrompt int

	// LengthsOnly leaves the texts out: of a prompt only [Request].Words is told.
	LengthsOnly bool
}

// DefaultGenerateConfig returns a load for six simulated workers on two cores.
func DefaultGenerateConfig() GenerateConfig {
	return GenerateConfig{
		Seed: 1, Requests: 400, Over: 25 * time.Second,
		Shrink: 16, Hurry: 60, MaxPause: 5 * time.Second, MaxTurns: 8, MaxPrompt: 7800,
	}
}

// Validate returns every fault of c, joined.
func (c *GenerateConfig) Validate() error {
	var errs []error
	check := func(ok bool, text string) {
		if !ok {
			errs = append(errs, errors.New(text))
		}
	}
	check(c.Requests > 0, "requests: give at least 1")
	check(c.Over >= 0, "over: give 0 or more")
	check(c.Shrink > 0, "shrink: give at least 1")
	check(c.Hurry > 0, "hurry: give more than 0")
	check(c.MaxPause > 0, "max pause: give more than 0")
	check(c.MaxTurns > 0, "max turns: give at least 1")
	check(c.MaxPrompt > 0, "max prompt: give at least 1")
	return errors.Join(errs...)
}

// quantiles is a distribution by its values at some probabilities, ascending.
type quantiles []struct{ p, v float64 }

// SystemTokens is the length of the block that every request of the trace shares.
const SystemTokens = 512

// statistics is what is drawn from. Lengths in tokens, times in seconds.
type statistics struct {
	firstPrompt quantiles // a conversation's first prompt, the shared block included
	question    quantiles // what a later turn adds to the last prompt and its answer
	answer      quantiles
	pause       quantiles // from one request of a conversation to the next
	goesOn      []float64 // chance of another turn after turn 1, 2, …; the last repeats
}

// mooncake returns what the Mooncake conversation trace says (FAST'25 release,
// 12,031 requests in one hour). A later turn is a request whose prefix reaches
// into another one's beyond the block that all share.
func mooncake() statistics {
	return statistics{
		firstPrompt: quantiles{{0, 891}, {.1, 905}, {.25, 1336}, {.5, 5264}, {.75, 13056}, {.9, 25553}, {.95, 38464}, {.99, 89867}, {1, 126195}},
		question:    quantiles{{0, 7}, {.25, 10}, {.5, 23}, {.75, 424}, {.9, 4251}, {.95, 7040}, {.99, 16705}, {1, 91467}},
		answer:      quantiles{{0, 1}, {.05, 10}, {.1, 24}, {.25, 156}, {.5, 350}, {.75, 472}, {.9, 597}, {.95, 698}, {.99, 1115}, {1, 2000}},
		pause:       quantiles{{0, 5}, {.05, 30}, {.1, 42}, {.25, 66}, {.5, 123}, {.75, 264}, {.9, 483}, {.95, 615}, {.99, 1473}, {1, 3030}},
		goesOn:      []float64{.307, .419, .51, .587, .588, .683, .75},
	}
}

// at returns the value that a share u of the distribution lies below,
// interpolated on a logarithmic scale: these tails are long.
func (q quantiles) at(u float64) float64 {
	i := slices.IndexFunc(q, func(e struct{ p, v float64 }) bool { return u <= e.p })
	if i <= 0 {
		return q[0].v
	}
	lo, hi := q[i-1], q[i]
	return lo.v * math.Pow(hi.v/lo.v, (u-lo.p)/(hi.p-lo.p))
}

// draw returns a random value of the distribution.
func (q quantiles) draw(r *rand.Rand) float64 { return q.at(r.Float64()) }

// Generate draws a plan. Each first turn arrives at a random time; each later
// one after a pause that follows the answer. Long conversations start early. A later prompt is the whole history
// and a new question; the answers in the history are written by the plan, not by
// the engine, so that every run sends the same bytes whatever happened to it.
func Generate(cfg GenerateConfig) (*Plan, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("conversations: %w", err)
	}
	r := rand.New(rand.NewPCG(cfg.Seed, 0)) //nolint:gosec // a simulation's chance
	g := &generator{cfg: cfg, r: r, trace: mooncake()}
	if !cfg.LengthsOnly {
		g.system = Message{"system", words(cfg.Seed, 1, g.words(SystemTokens))[1:]}
	}

	plan := &Plan{}
	for left := cfg.Requests; left > 0; {
		turns := g.turns(left)
		plan.Conversations = append(plan.Conversations, g.conversation(turns))
		left -= turns
	}
	g.arrive(plan)
	return plan, nil
}

type generator struct {
	cfg    GenerateConfig
	r      *rand.Rand
	trace  statistics
	system Message
	stream uint64 // numbers the texts
}

// words converts a length of the trace to ours, at least 1.
func (g *generator) words(tokens float64) int {
	return max(1, int(tokens/float64(g.cfg.Shrink)))
}

// text returns a new text of n words.
func (g *generator) text(n int) string {
	if g.cfg.LengthsOnly {
		return ""
	}
	g.stream++
	return words(g.cfg.Seed, 1+g.stream, n)[1:]
}

// turns draws the length of a conversation.
func (g *generator) turns(left int) int {
	limit := min(left, g.cfg.MaxTurns)
	turns := 1
	for turns < limit && g.r.Float64() < g.trace.goesOn[min(turns, len(g.trace.goesOn))-1] {
		turns++
	}
	return turns
}

// conversation draws the requests of one conversation, with the waits of all but
// the first.
func (g *generator) conversation(turns int) Conversation {
	length := max(g.words(g.trace.firstPrompt.draw(g.r)), g.words(SystemTokens)+1)
	ask := length - g.words(SystemTokens)
	history := []Message{g.system}
	c := Conversation{Requests: make([]Request, 0, turns)}
	total := g.words(SystemTokens)
	for turn := range turns {
		ask = max(1, min(ask, g.cfg.MaxPrompt-total))
		reply := g.words(g.trace.answer.draw(g.r))
		history = append(history, Message{"user", g.text(ask)})
		total += ask
		request := Request{Turn: turn, MaxTokens: reply, Words: total}
		if !g.cfg.LengthsOnly {
			request.Messages = slices.Clone(history)
		}
		if turn > 0 {
			request.Wait = min(g.cfg.MaxPause, time.Duration(g.trace.pause.draw(g.r)/g.cfg.Hurry*float64(time.Second)))
		}
		c.Requests = append(c.Requests, request)
		if total+reply >= g.cfg.MaxPrompt {
			// The window is full; a client would drop old turns, we stop.
			break
		}
		history = append(history, Message{"assistant", g.text(reply)})
		total += reply
		ask = g.words(g.trace.question.draw(g.r))
	}
	return c
}

// arrive gives the conversations random starts, such that their pauses end
// within the plan's time, and their requests names, in order of the starts.
func (g *generator) arrive(plan *Plan) {
	for i := range plan.Conversations {
		requests := plan.Conversations[i].Requests
		latest := g.cfg.Over
		for j := range requests {
			latest -= requests[j].Wait
		}
		requests[0].Wait = time.Duration(g.r.Float64() * float64(max(0, latest)))
	}
	slices.SortStableFunc(plan.Conversations, func(a, b Conversation) int {
		return cmp.Compare(a.Requests[0].Wait, b.Requests[0].Wait)
	})
	for i := range plan.Conversations {
		requests := plan.Conversations[i].Requests
		for j := range requests {
			requests[j].Conversation, requests[j].ID = i, requestID(i, j)
		}
	}
}
