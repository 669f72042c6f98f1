package fleet

import (
	"maps"
	"slices"
)

// Name is what a name that requests ask for stands for.
type Name struct {
	Model   string // the model whose files and workers serve it; "" when workers disagree
	Adapter string // the LoRA adapter on it; "" for none
}

// Names are names that an operator gives, for records that do not list them:
// each key is served by the workers of the model that is its value.
type Names struct {
	Aliases  map[string]string // further names of a model
	Adapters map[string]string // LoRA adapters on a model
}

// SetNames makes the workers of the named models serve further names, beside
// those in their records. It must be called before [Store.Run] or a first [Feed].
func (s *Store) SetNames(n Names) { s.given = n }

// add returns w with the names that n has for its model; w itself when there are
// none, for workers are immutable.
func (n *Names) add(w *Worker) *Worker {
	aliases, adapters := with(w.Aliases, n.Aliases, w.Model), with(w.Adapters, n.Adapters, w.Model)
	if len(aliases) == len(w.Aliases) && len(adapters) == len(w.Adapters) {
		return w
	}
	named := *w
	named.Aliases, named.Adapters = aliases, adapters
	return &named
}

// with returns has and the keys of more whose value is model.
func with(has []string, more map[string]string, model string) []string {
	out := slices.Clip(has)
	for _, name := range slices.Sorted(maps.Keys(more)) {
		if more[name] == model && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// Serves reports whether requests for name may go to w: its model, an alias of
// it, or an adapter on it. A worker whose model is not known may serve any.
func (w *Worker) Serves(name string) bool {
	return w.Model == name || w.Model == "" || slices.Contains(w.Aliases, name) || slices.Contains(w.Adapters, name)
}

// Names appends every name that w serves, its model's first and each once, to
// dst.
func (w *Worker) Names(dst []string) []string {
	start := len(dst)
	dst = append(dst, w.Model)
	for _, list := range [...][]string{w.Aliases, w.Adapters} {
		for _, name := range list {
			if !slices.Contains(dst[start:], name) {
				dst = append(dst, name)
			}
		}
	}
	return dst
}

// Name returns what name stands for. A name that is no alias and no adapter
// stands for the model of that name, whether there is one or not.
func (s *Snapshot) Name(name string) Name {
	if n, ok := s.names[name]; ok {
		return n
	}
	return Name{Model: name}
}

// Models returns the sorted names that requests can ask an active worker for:
// models, aliases and adapters.
func (s *Snapshot) Models() []string {
	var names []string
	for _, w := range s.Workers {
		if w.Status == Active && w.Model != "" {
			names = w.Names(names)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// namesOf returns the aliases and adapters of workers. A model's own name wins
// over an alias; a name that stands for different things on different workers
// stands for nothing that has one tokenizer.
func namesOf(workers []*Worker) map[string]Name {
	var names map[string]Name
	add := func(name string, n Name) {
		if names == nil {
			names = map[string]Name{}
		}
		if had, ok := names[name]; ok && had != n {
			n = Name{}
		}
		names[name] = n
	}
	for _, w := range workers {
		for _, name := range w.Aliases {
			add(name, Name{Model: w.Model})
		}
		for _, name := range w.Adapters {
			add(name, Name{Model: w.Model, Adapter: name})
		}
	}
	for _, w := range workers {
		delete(names, w.Model)
	}
	return names
}
