package assemble

import (
	"log/slog"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/plugins/tokenizer/remote"
	"pointsman/prompt"
	"pointsman/prompt/local"
	"pointsman/prompt/template"
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
	path := cfg.LocalTokenizer()
	if path == "" {
		return workers, []collector{workers}, nil
	}
	files := local.DefaultConfig()
	files.Path = path
	own, err := local.New(files, dialects(c.Store), workers, log)
	if err != nil {
		return nil, nil, err
	}
	c.local = own
	return own, []collector{workers, own}, nil
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
