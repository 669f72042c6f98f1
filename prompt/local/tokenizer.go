package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"pointsman/prompt"
	"pointsman/prompt/template"
	"pointsman/prompt/tokens"
)

// ErrDeclined means that a request cannot be tokenized exactly here.
var ErrDeclined = errors.New("not tokenized in this process")

// Config is where models are found and what may be spent on them.
type Config struct {
	// Path is a directory with the tokenizer.json of one model, which then serves
	// every model, or with one such directory for each model, PATH/MODEL, or a
	// tokenizer.json itself.
	Path string
	// CacheBytes bounds the memory for the ids of known stretches of text.
	// Default 64 MiB.
	CacheBytes int
	// MaxBytes is the longest prompt, rendered, that is tokenized; a longer one ends
	// with the result too_long. Default 1 MiB.
	MaxBytes int
	// Timeout is for tokenizing one prompt, without rendering; one that takes longer
	// ends with the result timeout. Ordinary text takes 10 ms per MiB, the worst 170.
	// Default 250 ms.
	Timeout time.Duration
	// Check is how often loaded files are looked at for changes. Default 10 s.
	Check time.Duration
}

// DefaultConfig returns a Config that lacks only its Path.
func DefaultConfig() Config {
	return Config{CacheBytes: 64 << 20, MaxBytes: 1 << 20, Timeout: 250 * time.Millisecond, Check: 10 * time.Second}
}

// Validate reports all faults of c.
func (c Config) Validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New("local tokenizer: no path"))
	}
	if c.CacheBytes < 0 {
		errs = append(errs, fmt.Errorf("local tokenizer: cache of %d bytes: want 0 or more", c.CacheBytes))
	}
	if c.MaxBytes <= 0 {
		errs = append(errs, fmt.Errorf("local tokenizer: prompts of %d bytes at most: want at least 1", c.MaxBytes))
	}
	if c.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("local tokenizer: timeout %v: want more than 0", c.Timeout))
	}
	if c.Check <= 0 {
		errs = append(errs, fmt.Errorf("local tokenizer: check every %v: want more than 0", c.Check))
	}
	return errors.Join(errs...)
}

// Dialect returns whose way of preparing a model's requests its engines follow;
// ok is false for a model that no worker serves, or whose workers differ.
type Dialect func(model string) (d template.Dialect, ok bool)

// Tokenizer implements [prompt.Tokenizer]. Make it with [New].
type Tokenizer struct {
	cfg     Config
	dialect Dialect
	log     *slog.Logger
	metrics *metrics
	cache   *tokens.PrefixCache
	loaded  func(model string, err error) // nil for none

	mu     sync.Mutex
	models map[string]*entry
	wanted chan string
	texts  sync.Pool // of *[]byte, rendered prompts
}

// New returns a tokenizer that has loaded nothing yet.
func New(cfg Config, dialect Dialect, log *slog.Logger) (*Tokenizer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := &Tokenizer{
		cfg: cfg, dialect: dialect, log: log,
		cache:  tokens.NewPrefixCache(cfg.CacheBytes),
		models: map[string]*entry{}, wanted: make(chan string, 64),
	}
	t.metrics = newMetrics(t)
	t.texts.New = func() any { return new([]byte) }
	return t, nil
}

// OnLoad has f called, by the goroutine of Run, whenever the files of a model
// have been read, with what error. It must be called before Run.
func (t *Tokenizer) OnLoad(f func(model string, err error)) { t.loaded = f }

// Tokenize appends the ids of r's prompt to dst: exactly those of the engine, or
// it returns an error and dst as it was.
func (t *Tokenizer) Tokenize(ctx context.Context, r *prompt.Request, dst []uint32) ([]uint32, error) {
	out, err := t.tokenize(ctx, r, dst)
	if err != nil {
		t.metrics.results.WithLabelValues(cause(err)).Inc()
		return dst, err
	}
	t.metrics.results.WithLabelValues("exact").Inc()
	r.Source = prompt.SourceFiles
	return out, nil
}

// Encode appends the ids that the named model's files make of a plain text,
// without special tokens around it, to dst. ok is false while they cannot, for
// whatever reason; then they are loaded if they can be.
func (t *Tokenizer) Encode(model string, dst []uint32, text string) (ids []uint32, ok bool) {
	m, err := t.model(model)
	if err != nil {
		return dst, false
	}
	ids, err = m.tokens.Encode(dst, []byte(text), tokens.WithoutSpecials)
	return ids, err == nil
}

// cause is the label of a decline.
func cause(err error) string {
	switch {
	case errors.Is(err, errLoading):
		return "loading"
	case errors.Is(err, errNoModel):
		return "no_model"
	case errors.Is(err, prompt.ErrTooLong):
		return "too_long"
	case errors.Is(err, tokens.ErrStopped):
		return "timeout"
	case errors.Is(err, tokens.ErrInvalidText), errors.Is(err, template.ErrInput):
		return "invalid_input"
	case errors.Is(err, template.ErrLimit):
		return "limit"
	case errors.Is(err, template.ErrTemplate):
		return "template"
	case errors.Is(err, ErrDeclined):
		return "declined"
	}
	return "failed"
}

func (t *Tokenizer) tokenize(ctx context.Context, r *prompt.Request, dst []uint32) ([]uint32, error) {
	switch {
	case declined(r):
		return dst, ErrDeclined
	case rawSize(r) > longestEscape*t.cfg.MaxBytes:
		return dst, prompt.ErrTooLong
	}
	d, ok := t.dialect(r.Base)
	if !ok {
		return dst, errNoModel
	}
	m, err := t.model(r.Base)
	if err != nil {
		return dst, err
	}
	text := t.texts.Get().(*[]byte) //nolint:forcetypeassert // the pool has no other
	defer t.texts.Put(text)
	*text = (*text)[:0]
	var specials tokens.Specials
	if *text, specials, err = m.text(*text, r, d); err != nil {
		return dst, err
	}
	if len(*text) > t.cfg.MaxBytes {
		return dst, prompt.ErrTooLong
	}
	stop := tokens.Stop{Done: ctx.Done(), Until: time.Now().Add(t.cfg.Timeout)}
	return t.cache.EncodeUntil(stop, m.tokens, dst, *text, specials)
}

// longestEscape is how many bytes of JSON a byte of text can take.
const longestEscape = len(`\u0041`)

// rawSize is how much JSON is rendered for r.
func rawSize(r *prompt.Request) int {
	if p, ok := r.Prompt(); ok {
		return len(p.Raw())
	}
	return len(r.Raw("messages")) + len(r.Raw("tools")) + len(r.Raw("documents"))
}

// declined reports whether the engine would make something of r that is not
// rebuilt here.
func declined(r *prompt.Request) bool {
	switch r.Kind {
	case prompt.Chat:
		return r.Multimodal || !r.Set("messages") || r.Set("chat_template") || r.Set("functions") || r.Set("truncate_prompt_tokens")
	case prompt.Completions:
		_, ok := r.Prompt()
		return !ok || r.Prompts() > 1 || r.Set("truncate_prompt_tokens") || r.Set("prompt_embeds")
	case prompt.Messages, prompt.Other:
	}
	return true // Anthropic's form is turned into a chat by the engine's own rules
}
