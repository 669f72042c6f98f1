// Package objectives holds what the operators of a pool say of its requests: how
// urgent those of an objective are, and which model stands in for the one that a
// request names. Kubernetes' InferenceObjective and InferenceModelRewrite say it
// (Gateway API Inference Extension; later llm-d's).
//
// A discovery adapter writes to a [Book]; the doors read from it.
//
// # Concurrency
//
// Any number of goroutines may read a Book; one at a time may write to it. Each
// reading sees one whole state.
package objectives

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Objective is a class of requests, which they name in a header.
type Objective struct {
	Name     string
	Priority int // higher goes first; below 0 may be shed
}

// Rewrite replaces the model names of requests by its first rule that matches.
type Rewrite struct {
	Name    string
	Created time.Time // of two rewrites that match, the older counts
	Rules   []Rule
}

// Rule is one rule of a [Rewrite].
type Rule struct {
	Models  []string // the names it is for, to the letter; none for all names
	Targets []Target // what may stand in; a rule without any is void
}

// Target is a model that stands in for another.
type Target struct {
	Model  string
	Weight int // its share, among those of the rule; all 0 are equal shares
}

// Book is the present objectives and rewrites. Its zero value has none.
type Book struct{ cur atomic.Pointer[page] }

// page is one state of a Book; it never changes.
type page struct {
	priority map[string]int
	exact    map[string]choice
	generic  *choice
}

// choice is what stands in for a name.
type choice struct {
	rewrite string
	targets []Target
	total   int
}

// Set replaces all that the book says. Of two objectives with one name the first
// counts.
func (b *Book) Set(all []Objective, rewrites []Rewrite) {
	next := &page{priority: map[string]int{}, exact: map[string]choice{}}
	for _, o := range all {
		if _, dup := next.priority[o.Name]; !dup {
			next.priority[o.Name] = o.Priority
		}
	}
	rewrites = slices.Clone(rewrites)
	slices.SortStableFunc(rewrites, func(a, b Rewrite) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	for _, r := range rewrites {
		for _, rule := range r.Rules {
			next.add(r.Name, rule)
		}
	}
	b.cur.Store(next)
}

// add takes a rule that is younger than all before it.
func (p *page) add(rewrite string, rule Rule) {
	c := choice{rewrite: rewrite}
	for _, t := range rule.Targets {
		if t.Model != "" && t.Weight >= 0 {
			c.targets = append(c.targets, t)
			c.total += t.Weight
		}
	}
	if len(c.targets) == 0 {
		return
	}
	if len(rule.Models) == 0 && p.generic == nil {
		p.generic = &c
	}
	for _, name := range rule.Models {
		if _, older := p.exact[name]; !older {
			p.exact[name] = c
		}
	}
}

// Priority returns the priority of the named objective; false when there is none
// of that name. b may be nil.
func (b *Book) Priority(name string) (int, bool) {
	if b == nil || name == "" {
		return 0, false
	}
	p := b.cur.Load()
	if p == nil {
		return 0, false
	}
	n, ok := p.priority[name]
	return n, ok
}

// Rewritten returns the model that stands in for model, and the name of the
// rewrite that says so; false when none does. draw, in [0, 1), decides among
// several by their weights. A rule for the very name beats one for all names.
// b may be nil.
func (b *Book) Rewritten(model string, draw float64) (target, rewrite string, ok bool) {
	if b == nil {
		return "", "", false
	}
	p := b.cur.Load()
	if p == nil {
		return "", "", false
	}
	c, ok := p.exact[model]
	if !ok {
		if p.generic == nil {
			return "", "", false
		}
		c = *p.generic
	}
	return c.draw(draw), c.rewrite, true
}

// draw picks a target.
func (c *choice) draw(at float64) string {
	last := c.targets[len(c.targets)-1].Model
	if c.total == 0 {
		return c.targets[min(int(at*float64(len(c.targets))), len(c.targets)-1)].Model
	}
	rest := at * float64(c.total)
	for _, t := range c.targets {
		if rest -= float64(t.Weight); rest < 0 {
			return t.Model
		}
	}
	return last
}
