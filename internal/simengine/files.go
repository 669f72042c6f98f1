package simengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"pointsman/fleet"
	"pointsman/prompt/template"
	"pointsman/prompt/tokens"
	"pointsman/wire"
)

// modelFiles is a real model's tokenizer and chat template, in place of the
// engine's own simple ones.
type modelFiles struct {
	tokens    *tokens.Tokenizer
	templates *template.Set // nil when the directory has none: then chats are refused, as engines do
	dialect   template.Dialect
}

// loadFiles reads a model's directory; "" is none, and nil.
func loadFiles(dir string, engine fleet.Engine) (*modelFiles, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // no files are no fault
	}
	tok, err := tokens.Load(dir)
	if err != nil {
		return nil, fmt.Errorf("model files: %w", err)
	}
	set, err := template.Load(dir)
	if err != nil && !errors.Is(err, template.ErrNoTemplate) && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model files: %w", err)
	}
	m := &modelFiles{tokens: tok, templates: set, dialect: template.VLLM}
	if engine == fleet.SGLang {
		m.dialect = template.SGLang
	}
	return m, nil
}

// text tokenizes plain text, with what the tokenizer puts around it if special.
func (m *modelFiles) text(text string, special bool) ([]uint32, *apiError) {
	specials := tokens.WithoutSpecials
	if special {
		specials = tokens.WithSpecials
	}
	ids, err := m.tokens.Encode(nil, []byte(text), specials)
	if err != nil {
		return nil, badRequest("prompt", "%v", err)
	}
	return ids, nil
}

// chat renders a chat's messages and tools by the model's template.
func (m *modelFiles) chat(b body) ([]uint32, *apiError) {
	if m.templates == nil {
		return nil, badRequest("messages", "the model has no chat template")
	}
	text, err := m.render(b)
	if err != nil {
		return nil, badRequest("messages", "%v", err)
	}
	special := false
	if err := b.get("add_special_tokens", &special); err != nil {
		return nil, err
	}
	return m.text(string(text), special)
}

func (m *modelFiles) render(b body) ([]byte, error) {
	raw, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	in, err := template.FromChat(raw, m.dialect)
	if err != nil {
		return nil, err
	}
	in.Now = time.Now()
	tpl, err := m.templates.For(&in)
	if err != nil {
		return nil, err
	}
	return tpl.Render(nil, &in, template.Limits{})
}

// canary is what the engine registers, as Infera's launchers do.
func (e *Engine) canary() []uint32 {
	ids, _ := e.textTokens(wire.CanaryText, false)
	return ids
}
