package assemble

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/plugins/tokenizer/remote"
	"pointsman/prompt"
	"pointsman/prompt/audit"
	"pointsman/prompt/local"
	"pointsman/prompt/template"
	"pointsman/wire"
)

// newTokenizer makes what turns prompts into token ids, and says which rooms
// with metrics it made: the model's own files where they are on this machine,
// and a worker's /tokenize for the rest; nil when prompts go by bytes.
func (c *Core) newTokenizer(cfg *config.Config, log *slog.Logger) (prompt.Tokenizer, []collector, error) {
	if cfg.Tokenizer == "none" {
		return nil, nil, nil
	}
	settings := remote.DefaultConfig()
	settings.Timeout = cfg.TokenizeTimeout
	if err := settings.Validate(); err != nil {
		return nil, nil, err
	}
	workers := remote.New(settings, c.Store, log)
	links := []audit.Link{{Source: prompt.SourceWorker, Tokenizer: workers}}
	rooms := []collector{workers}
	if path := cfg.LocalTokenizer(); path != "" {
		files := local.DefaultConfig()
		files.Path, files.MaxBytes = path, cfg.TokenizeMaxBytes
		own, err := local.New(files, dialects(c.Store), log)
		if err != nil {
			return nil, nil, err
		}
		own.OnLoad(func(model string, err error) {
			c.audit.Loaded(model, err == nil)
			c.checkCanaries()
		})
		c.local = own
		links = slices.Insert(links, 0, audit.Link{Source: prompt.SourceFiles, Tokenizer: own})
		rooms = append(rooms, own)
	}
	return audit.NewChain(c.audit, links...), rooms, nil
}

// newAudit makes what compares our numbers with the engines'.
func newAudit(cfg *config.Config, store *fleet.Store, log *slog.Logger) *audit.Auditor {
	return audit.New(cfg.Audit, func() (workers, models map[string]bool) {
		workers, models = map[string]bool{}, map[string]bool{}
		for _, w := range store.Snapshot().Workers {
			workers[w.ID], models[w.Model] = true, true
		}
		return workers, models
	}, log, time.Now)
}

// watchCanaries compares the tokenizer canaries that workers register with what
// our files make of the same text, whenever the fleet changes, once prompts are
// scored: before, no files are loaded.
func (c *Core) watchCanaries(ctx context.Context) error {
	select {
	case <-c.wanted:
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		changed := c.Store.Changed()
		c.checkCanaries() //nolint:contextcheck // its log lines are of no request
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Core) checkCanaries() {
	own := map[string][]uint32{}
	for _, w := range c.Store.Snapshot().Workers {
		if len(w.Canary) == 0 {
			continue
		}
		ids, known := own[w.Model]
		if !known {
			ids, _ = c.local.Encode(w.Model, nil, wire.CanaryText)
			own[w.Model] = ids
		}
		if ids != nil {
			c.audit.Canary(w.Model, w.ID, slices.Equal(ids, w.Canary))
		}
	}
}

// dialects tells which engine's way of preparing a prompt a model's workers
// follow, for models whose workers agree.
func dialects(store *fleet.Store) local.Dialect {
	return func(model string) (template.Dialect, bool) {
		var engine fleet.Engine
		for _, w := range store.Snapshot().Workers {
			if w.Model != model || w.Status != fleet.Active {
				continue
			}
			if engine != "" && engine != w.Engine {
				return template.Plain, false
			}
			engine = w.Engine
		}
		switch engine {
		case fleet.VLLM, fleet.ATOM: // ATOM serves through vLLM's front end
			return template.VLLM, true
		case fleet.SGLang:
			return template.SGLang, true
		}
		return template.Plain, false
	}
}
