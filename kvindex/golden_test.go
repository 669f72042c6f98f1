package kvindex

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// talk plays the conversations of testdata. A line is a command; what the
// lookups and modes print must be what follows "----". Each letter of a prompt is
// one block of one token; the engine's handle of a block is made of the letters
// up to it.
//
//	store W abc        blocks of abc, from the start of a prompt
//	store W abc+de     blocks of de after those of abc
//	remove W abc       the block c of that prompt; "remove W a-abc" a, ab and abc
//	evict W host abc   the same from the host tier;  offload W abc: to the host
//	predict W abc 5s   present W abc   clear W   reset W   forget W   pass 5s
//	lookup abcd        mode W
type talk struct {
	x   *Index
	now time.Time
	out strings.Builder
	ids []string
}

func (g *talk) feed(w string) *Feed {
	if slices.Contains(g.ids, w) {
		return g.x.Feed(w)
	}
	g.ids = append(g.ids, w)
	f := g.x.Feed(w)
	f.Connected(g.now)
	return f
}

func letters(prompt string) (tokens []uint32) {
	for _, c := range prompt {
		tokens = append(tokens, uint32(c))
	}
	return tokens
}

// handle names the last block of a prompt.
func handle(prompt string) uint64 {
	h := uint64(len(prompt))
	for _, c := range prompt {
		h = h*1_000_003 + uint64(c)
	}
	return h
}

func (g *talk) stored(prompt string, tier Tier) Event {
	parent, rest, has := strings.Cut(prompt, "+")
	if !has {
		parent, rest = "", prompt
	}
	e := Event{Kind: Stored, BlockSize: 1, Tokens: letters(rest), Tier: tier, HasParent: has}
	if has {
		e.Parent = handle(parent)
	}
	for i := range rest {
		e.Hashes = append(e.Hashes, handle(parent+rest[:i+1]))
	}
	return e
}

func (g *talk) removed(prompt string, tier Tier) Event {
	e := Event{Kind: Removed, Tier: tier}
	first, last, isRange := strings.Cut(prompt, "-")
	if !isRange {
		last = first
	}
	for n := len(first); n <= len(last); n++ {
		e.Hashes = append(e.Hashes, handle(last[:n]))
	}
	return e
}

func (g *talk) do(line string) error {
	w := strings.Fields(line)
	apply := func(e Event) { g.feed(w[1]).Apply(&Batch{Rank: -1, Events: []Event{e}}, g.now) }
	switch w[0] {
	case "store":
		apply(g.stored(w[2], Device))
	case "offload":
		apply(g.stored(w[2], Host))
	case "remove":
		apply(g.removed(w[2], Device))
	case "evict":
		apply(g.removed(w[3], Host))
	case "clear":
		apply(Event{Kind: Cleared})
	case "reset":
		g.feed(w[1]).Reset(ResetIncarnation)
	case "forget":
		g.x.Forget(w[1])
	case "predict":
		ttl, err := time.ParseDuration(w[3])
		if err != nil {
			return err
		}
		g.x.Predict(g.x.Instance(w[1]), HashTokens(nil, 0, letters(w[2]), 1), g.now, ttl)
	case "present":
		g.x.Present(g.x.Instance(w[1]), HashTokens(nil, 0, letters(w[2]), 1), g.now)
	case "pass":
		d, err := time.ParseDuration(w[1])
		if err != nil {
			return err
		}
		g.now = g.now.Add(d)
		g.x.Expire(g.now)
	case "lookup":
		var s Scratch
		g.x.Lookup(HashTokens(nil, 0, letters(w[1]), 1), &s)
		fmt.Fprintf(&g.out, "%s:", w[1])
		for _, id := range g.ids {
			fmt.Fprintf(&g.out, " %s=%d", id, s.Depth(g.x.Instance(id)))
		}
		g.out.WriteByte('\n')
	case "mode":
		fmt.Fprintf(&g.out, "%s is %v\n", w[1], g.x.Mode(g.x.Instance(w[1]), g.now))
	default:
		return fmt.Errorf("unknown command %q", line)
	}
	return g.x.audit()
}

var update = flag.Bool("update", false, "write what the golden conversations print")

func TestConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, want, _ := strings.Cut(string(raw), "----\n")
			g := &talk{x: New(Config{}), now: time.Unix(1, 0)}
			for line := range strings.Lines(script) {
				line = strings.TrimSpace(line)
				if line == "" || line[0] == '#' {
					continue
				}
				if err := g.do(line); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
			}
			if *update {
				if err := os.WriteFile(file, []byte(script+"----\n"+g.out.String()), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := g.out.String(); got != want && !*update {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}
