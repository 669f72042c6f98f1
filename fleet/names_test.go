package fleet

import (
	"slices"
	"testing"
)

func TestAliasesAndAdaptersStandForTheirModel(t *testing.T) {
	a := &Worker{ID: "a", Model: "base", Aliases: []string{"chat"}, Adapters: []string{"sql"}}
	b := &Worker{ID: "b", Model: "other", Aliases: []string{"both", "base"}}
	c := &Worker{ID: "c", Model: "base", Aliases: []string{"both"}}
	var store Store
	store.SetNames(Names{Aliases: map[string]string{"given": "base", "nobody's": "absent"}, Adapters: map[string]string{"more": "other", "sql": "base"}})
	NewFeed(&store).Replace([]*Worker{a, b, c})
	snap := store.Snapshot()
	for name, want := range map[string]Name{
		"base":     {Model: "base"}, // a model's own name is no alias of another
		"chat":     {Model: "base"},
		"sql":      {Model: "base", Adapter: "sql"},
		"given":    {Model: "base"},
		"more":     {Model: "other", Adapter: "more"},
		"both":     {}, // the workers disagree
		"nobody's": {Model: "nobody's"},
	} {
		if got := snap.Name(name); got != want {
			t.Errorf("%q stands for %+v, want %+v", name, got, want)
		}
	}
	if got, want := snap.Models(), []string{"base", "both", "chat", "given", "more", "other", "sql"}; !slices.Equal(got, want) {
		t.Errorf("models %q, want %q", got, want)
	}
	if w := snap.Worker("c"); !w.Serves("given") || !w.Serves("sql") || w.Serves("chat") || w.Serves("more") {
		t.Errorf("worker c serves %q", w.Names(nil))
	}
	if a.Serves("given") {
		t.Error("a published worker was changed")
	}
	NewFeed(&store).Put(&Worker{ID: "d", Model: "other"})
	if !store.Snapshot().Worker("d").Serves("more") {
		t.Error("a worker that came later lacks the given name")
	}
}
