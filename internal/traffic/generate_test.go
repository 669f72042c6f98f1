package traffic

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func generate(t *testing.T, change func(*GenerateConfig)) *Plan {
	t.Helper()
	cfg := DefaultGenerateConfig()
	if change != nil {
		change(&cfg)
	}
	plan, err := Generate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// asTokens counts one token per word, and two per message for its template.
func asTokens(messages []Message) []uint32 {
	var ids []uint32
	for _, m := range messages {
		ids = append(ids, uint32(len(m.Role)))
		for word := range strings.FieldsSeq(m.Content) {
			var id uint32
			for _, b := range []byte(word) {
				id = id<<8 | uint32(b)
			}
			ids = append(ids, id)
		}
		ids = append(ids, 1)
	}
	return ids
}

func TestTheSameSeedGivesTheSameRequests(t *testing.T) {
	a, b := generate(t, nil), generate(t, nil)
	if !reflect.DeepEqual(a, b) {
		t.Error("two plans of one seed differ")
	}
	c := generate(t, func(cfg *GenerateConfig) { cfg.Seed = 2 })
	if a.Conversations[0].Requests[0].Messages[0] == c.Conversations[0].Requests[0].Messages[0] {
		t.Error("two seeds have the same system prompt")
	}
}

func TestAPlanHasExactlyTheRequestsAskedFor(t *testing.T) {
	for _, n := range []int{1, 2, 17, 400} {
		plan := generate(t, func(cfg *GenerateConfig) { cfg.Requests = n })
		if got := plan.Len(); got > n || got < n*9/10 {
			t.Errorf("asked for %d requests, got %d", n, got)
		}
	}
}

func TestEachTurnContinuesTheLast(t *testing.T) {
	plan := generate(t, nil)
	ids := map[string]bool{}
	later := 0
	for i := range plan.Conversations {
		requests := plan.Conversations[i].Requests
		for j := range requests {
			r := &requests[j]
			if ids[r.ID] || r.Conversation != i || r.Turn != j || r.MaxTokens < 1 {
				t.Fatalf("request %+v of conversation %d, turn %d: bad name or place", r.ID, i, j)
			}
			ids[r.ID] = true
			if last := r.Messages[len(r.Messages)-1]; last.Role != "user" || last.Content == "" {
				t.Fatalf("%s ends with %+v, want a question", r.ID, last)
			}
			if j == 0 {
				continue
			}
			later++
			before := requests[j-1].Messages
			if !slices.Equal(before, r.Messages[:len(before)]) || len(r.Messages) != len(before)+2 {
				t.Fatalf("%s does not continue %s", r.ID, requests[j-1].ID)
			}
		}
	}
	if later < 50 {
		t.Errorf("only %d later turns in 400 requests", later)
	}
}

func TestStartsAscendWithinTheirTime(t *testing.T) {
	plan := generate(t, func(cfg *GenerateConfig) { cfg.Over = 10 * time.Second })
	last := time.Duration(0)
	for _, c := range plan.Conversations {
		start := c.Requests[0].Wait
		if start < last || start > 10*time.Second {
			t.Fatalf("start %v after %v", start, last)
		}
		last = start
	}
}

// TestStatisticsOfTheTrace compares a large plan with what the generator's tables
// were taken from.
func TestStatisticsOfTheTrace(t *testing.T) {
	const shrink = 8
	plan := generate(t, func(cfg *GenerateConfig) {
		cfg.Requests, cfg.Shrink, cfg.Hurry, cfg.MaxTurns, cfg.MaxPrompt = 900, shrink, 1, 20, 126195/shrink
		cfg.MaxPause = time.Hour
	})
	var lengths, outputs, pauses []float64
	first := 0
	cache := NewCeiling(512 / shrink)
	for turn := range 20 { // breadth first, as turns of many conversations interleave
		for i := range plan.Conversations {
			if turn >= len(plan.Conversations[i].Requests) {
				continue
			}
			r := &plan.Conversations[i].Requests[turn]
			ids := asTokens(r.Messages)
			cache.Add(ids)
			lengths, outputs = append(lengths, float64(shrink*len(ids))), append(outputs, float64(shrink*r.MaxTokens))
			if turn == 0 {
				first++
			} else {
				pauses = append(pauses, r.Wait.Seconds())
			}
		}
	}
	median := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	for _, check := range []struct {
		what      string
		got, want float64
		tolerance float64 // relative
	}{
		{"median prompt", median(lengths), 6909, .35},
		{"90th percentile of prompts", lengths[len(lengths)*9/10], 27367, .35},
		{"median answer", median(outputs), 350, .1},
		{"median pause", median(pauses), 123, .15},
		{"share of first turns", float64(first) / float64(len(lengths)), 7373.0 / 12031, .1},
		{"share of tokens an unbounded cache holds", cache.Ratio(), .366, .25},
	} {
		if math.Abs(check.got/check.want-1) > check.tolerance {
			t.Errorf("%s: %.3g, the trace has %.3g", check.what, check.got, check.want)
		} else {
			t.Logf("%s: %.3g, the trace has %.3g", check.what, check.got, check.want)
		}
	}
}

func TestBadConfigurationIsRefusedWithEveryFault(t *testing.T) {
	_, err := Generate(GenerateConfig{})
	if err == nil {
		t.Fatal("the zero configuration was accepted")
	}
	for _, want := range []string{"requests", "shrink", "hurry", "max pause", "max turns", "max prompt"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}
