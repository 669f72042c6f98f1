package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pointsman/prompt/template"
	"pointsman/prompt/tokens"
)

var (
	errLoading = errors.New("the model's tokenizer is not loaded yet")
	errNoModel = errors.New("no worker serves the model, or its engines differ")
)

// entry is what is known of one model's files.
type entry struct {
	model *model // nil until loaded, or when err is set
	err   error  // why it cannot be honoured; errLoading at first
	stamp string // of the files as they were loaded
}

// model is one model's tokenizer and templates, immutable.
type model struct {
	tokens    *tokens.Tokenizer
	templates *template.Set // nil when it has none: then chats are declined
}

// model returns what serves the named model, and asks for it to be loaded when
// it is not known. Names come from the fleet, so there are not many.
func (t *Tokenizer) model(name string) (*model, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.models[name]
	if e == nil {
		e = &entry{err: errLoading}
		select {
		case t.wanted <- name:
			t.models[name] = e
		default: // asked for again by a later request
		}
	}
	return e.model, e.err
}

// Run loads what requests ask for, and loads again what changed, until ctx is
// done.
func (t *Tokenizer) Run(ctx context.Context) error {
	tick := time.NewTicker(t.cfg.Check)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case name := <-t.wanted:
			t.load(ctx, name)
		case <-tick.C:
			t.reload(ctx)
		}
	}
}

func (t *Tokenizer) reload(ctx context.Context) {
	t.mu.Lock()
	stamps := make(map[string]string, len(t.models))
	for name, e := range t.models {
		stamps[name] = e.stamp
	}
	t.mu.Unlock()
	for name, stamp := range stamps {
		if stamp != stampOf(t.dir(name)) {
			t.load(ctx, name)
		}
	}
}

// load reads the files of a model. When new files are at fault, the model's
// requests are declined: the engine that has them may be running already.
func (t *Tokenizer) load(ctx context.Context, name string) {
	dir := t.dir(name)
	e := &entry{stamp: stampOf(dir)}
	if e.model, e.err = read(dir); e.err != nil {
		e.err = fmt.Errorf("%w: %w", ErrDeclined, e.err)
		t.log.LogAttrs(ctx, slog.LevelWarn, "a model's prompts are not tokenized in this process",
			slog.String("model", name), slog.String("path", dir), slog.Any("error", e.err))
	} else {
		t.log.LogAttrs(ctx, slog.LevelInfo, "a model's tokenizer is loaded",
			slog.String("model", name), slog.String("path", dir), slog.Int("bytes", e.model.tokens.Memory()), slog.Bool("chat_template", e.model.templates != nil))
	}
	t.mu.Lock()
	t.models[name] = e
	t.mu.Unlock()
	if t.loaded != nil {
		t.loaded(name, e.err)
	}
}

// dir is where a model's files are: PATH/MODEL when that exists, else PATH.
func (t *Tokenizer) dir(model string) string {
	if filepath.IsLocal(model) { // a name from outside must not lead elsewhere
		own := filepath.Join(t.cfg.Path, filepath.FromSlash(model))
		if info, err := os.Stat(own); err == nil && info.IsDir() {
			return own
		}
	}
	return strings.TrimSuffix(t.cfg.Path, "/tokenizer.json") // Infera takes the file's directory, too
}

func read(dir string) (*model, error) {
	tok, err := tokens.Load(dir)
	if err != nil {
		return nil, err
	}
	set, err := template.Load(dir)
	switch {
	case errors.Is(err, template.ErrNoTemplate), errors.Is(err, fs.ErrNotExist):
		set = nil
	case err != nil:
		return nil, err
	}
	return &model{tokens: tok, templates: set}, nil
}

// stampOf changes when a file of the directory that counts does.
func stampOf(dir string) string {
	var b strings.Builder
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json", "special_tokens_map.json", "tiktoken.model"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			fmt.Fprintf(&b, "%s %d %d;", name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return b.String()
}
