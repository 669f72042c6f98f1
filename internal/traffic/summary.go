package traffic

import (
	"cmp"
	"slices"
	"time"
)

// Summary is a run in numbers.
type Summary struct {
	Requests, OK, Interrupted, Failed int
	HitRatio                          float64       // cached of all prompt tokens, as the engines' usage says
	TTFTp50, TTFTp90, TTFTp99         time.Duration // of answers that began
}

// Summarize adds up results. Only whole answers carry usage, so the hit ratio is
// theirs.
func Summarize(results []Result) Summary {
	s := Summary{Requests: len(results)}
	var prompt, cached int
	var ttft []time.Duration
	for i := range results {
		r := &results[i]
		switch r.Outcome() {
		case OK:
			s.OK++
		case Interrupted:
			s.Interrupted++
		case Failed:
			s.Failed++
		}
		prompt += r.PromptTokens
		cached += r.CachedTokens
		if t := r.TTFT(); t > 0 {
			ttft = append(ttft, t)
		}
	}
	if prompt > 0 {
		s.HitRatio = float64(cached) / float64(prompt)
	}
	if len(ttft) > 0 {
		slices.Sort(ttft)
		s.TTFTp50, s.TTFTp90, s.TTFTp99 = ttft[len(ttft)/2], ttft[len(ttft)*9/10], ttft[len(ttft)*99/100]
	}
	return s
}

// CeilingOf returns the hit ratio of an unbounded shared cache over the same
// requests in the order in which they were sent. The requests must have tokens.
func CeilingOf(results []Result, blockSize int) float64 {
	order := make([]*Result, 0, len(results))
	for i := range results {
		if !results[i].Sent.IsZero() {
			order = append(order, &results[i])
		}
	}
	slices.SortFunc(order, func(a, b *Result) int { return cmp.Compare(a.Sent.UnixNano(), b.Sent.UnixNano()) })
	c := NewCeiling(blockSize)
	for _, r := range order {
		c.Add(r.Request.Tokens)
	}
	return c.Ratio()
}
