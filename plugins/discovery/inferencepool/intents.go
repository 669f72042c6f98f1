package inferencepool

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"time"

	"pointsman/internal/kube"
	"pointsman/objectives"
)

// intentGroups are the API groups of objectives and rewrites, the one that counts
// first: they moved from GIE to llm-d after GIE 1.5.
func intentGroups() []string { return []string{"llm-d.ai", "inference.networking.x-k8s.io"} }

type intentKind struct{ plural, kind string }

func intentKinds() []intentKind {
	return []intentKind{{"inferenceobjectives", "InferenceObjective"}, {"inferencemodelrewrites", "InferenceModelRewrite"}}
}

// intents are the objects that say what a pool's requests are about, by plural,
// group and name.
type intents map[string]map[string]map[string]*kube.Object

// poolRef is what an object is about.
type poolRef struct {
	Group string `json:"group"`
	Kind  string `json:"kind"`
	Name  string `json:"name"`
}

// is reports whether r refers to the InferencePool of that name. The defaults are
// the CRD's.
func (r poolRef) is(name string) bool {
	return r.Name == name && cmp.Or(r.Kind, "InferencePool") == "InferencePool" && cmp.Or(r.Group, poolGroup) == poolGroup
}

type objectiveSpec struct {
	Priority int     `json:"priority"` // unset is 0
	PoolRef  poolRef `json:"poolRef"`
}

type rewriteSpec struct {
	PoolRef poolRef `json:"poolRef"`
	Rules   []struct {
		Matches []struct {
			Model *struct {
				Type  string `json:"type"`
				Value string `json:"value"`
			} `json:"model"`
		} `json:"matches"`
		Targets []struct {
			ModelRewrite string `json:"modelRewrite"`
			Weight       int    `json:"weight"`
		} `json:"targets"`
	} `json:"rules"`
}

// objectivesOf reads the pool's objectives, those of the first group first.
func (i intents) objectivesOf(pool string) (out []objectives.Objective) {
	i.each("inferenceobjectives", func(o *kube.Object) {
		var spec objectiveSpec
		if json.Unmarshal(o.Spec, &spec) == nil && spec.PoolRef.is(pool) {
			out = append(out, objectives.Objective{Name: o.Name, Priority: spec.Priority})
		}
	})
	return out
}

// rewritesOf reads the pool's rewrites. A match of a kind that is not known
// matches nothing.
func (i intents) rewritesOf(pool string) (out []objectives.Rewrite) {
	seen := map[string]bool{}
	i.each("inferencemodelrewrites", func(o *kube.Object) {
		var spec rewriteSpec
		if seen[o.Name] || json.Unmarshal(o.Spec, &spec) != nil || !spec.PoolRef.is(pool) {
			return
		}
		seen[o.Name] = true
		r := objectives.Rewrite{Name: o.Name, Created: o.CreationTimestamp.Time}
		for _, from := range spec.Rules {
			rule, generic := objectives.Rule{}, len(from.Matches) == 0
			for _, m := range from.Matches {
				switch {
				case m.Model == nil:
					generic = true
				case cmp.Or(m.Model.Type, "Exact") == "Exact" && m.Model.Value != "":
					rule.Models = append(rule.Models, m.Model.Value)
				}
			}
			for _, to := range from.Targets {
				rule.Targets = append(rule.Targets, objectives.Target{Model: to.ModelRewrite, Weight: to.Weight})
			}
			if generic {
				rule.Models = nil
			} else if len(rule.Models) == 0 {
				continue
			}
			r.Rules = append(r.Rules, rule)
		}
		out = append(out, r)
	})
	return out
}

func (i intents) each(plural string, do func(*kube.Object)) {
	for _, group := range intentGroups() {
		objects := i[plural][group]
		for _, name := range slices.Sorted(maps.Keys(objects)) {
			do(objects[name])
		}
	}
}

// intentHandler follows one resource; it implements [kube.Handler].
type intentHandler struct {
	*follower
	resource, group, plural string
}

// Replace implements [kube.Handler].
func (h *intentHandler) Replace(_ context.Context, all []*kube.Object) {
	h.metrics.lists.WithLabelValues(h.resource).Inc()
	byName := map[string]*kube.Object{}
	for _, o := range all {
		byName[o.Name] = o
	}
	h.change(func(map[string]*kube.Object) map[string]*kube.Object { return byName })
}

// Put implements [kube.Handler].
func (h *intentHandler) Put(_ context.Context, o *kube.Object) {
	h.change(func(all map[string]*kube.Object) map[string]*kube.Object { all[o.Name] = o; return all })
}

// Remove implements [kube.Handler].
func (h *intentHandler) Remove(_ context.Context, o *kube.Object) {
	h.change(func(all map[string]*kube.Object) map[string]*kube.Object { delete(all, o.Name); return all })
}

// change edits the objects of h's resource and writes the book anew.
func (h *intentHandler) change(edit func(map[string]*kube.Object) map[string]*kube.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.intents == nil {
		h.intents = intents{}
	}
	if h.intents[h.plural] == nil {
		h.intents[h.plural] = map[string]map[string]*kube.Object{}
	}
	all := h.intents[h.plural][h.group]
	if all == nil {
		all = map[string]*kube.Object{}
	}
	h.intents[h.plural][h.group] = edit(all)
	h.book.Set(h.intents.objectivesOf(h.cfg.Pool), h.intents.rewritesOf(h.cfg.Pool))
}

// Fresh implements [kube.Handler].
func (h *intentHandler) Fresh(time.Time) {}

// Watching implements [kube.Handler].
func (h *intentHandler) Watching() { h.metrics.watches.WithLabelValues(h.resource).Inc() }

// InStep implements [kube.Handler].
func (h *intentHandler) InStep(ctx context.Context, _ string, news bool) {
	if news {
		h.log.LogAttrs(ctx, slog.LevelInfo, "an optional resource is followed", slog.String("resource", h.resource))
	}
}

// Ended implements [kube.Handler]. Nothing else depends on these resources: a
// cluster without them is no fault.
func (h *intentHandler) Ended(ctx context.Context, err error, routine, news bool) {
	if !routine && kube.Unavailable(err) {
		if news {
			h.log.LogAttrs(ctx, slog.LevelInfo, "an optional resource is not available; it is looked for from time to time",
				slog.String("resource", h.resource), slog.Any("error", err))
		}
		return
	}
	h.metrics.failed(h.resource, err)
	if !routine && news {
		h.log.LogAttrs(ctx, slog.LevelWarn, "an optional resource cannot be read; what it said before stays",
			slog.String("resource", h.resource), slog.Any("error", err))
	}
}
