package local

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pointsman/prompt"
	"pointsman/prompt/template"
	"pointsman/prompt/tokens"
)

// Files are one model's tokenizer and chat templates, read once: for looking at a
// model from the command line. The router's are in [Tokenizer]. Any number of
// goroutines may use them.
type Files struct {
	model   *model
	dialect template.Dialect
}

// Open reads the files in a directory, or beside a tokenizer.json, for engines that
// prepare prompts by d. The error names the file and what cannot be honoured.
func Open(path string, d template.Dialect) (*Files, error) {
	m, err := read(strings.TrimSuffix(path, "/tokenizer.json"))
	if err != nil {
		return nil, err
	}
	return &Files{model: m, dialect: d}, nil
}

// Tokenizer returns the model's tokenizer.
func (f *Files) Tokenizer() *tokens.Tokenizer { return f.model.tokens }

// Text appends the text that the engine tokenizes for r to dst, and says whether it
// adds special tokens to it. The error wraps [ErrDeclined] for a request whose text
// is not rebuilt here, and one of package template's when the template fails.
func (f *Files) Text(dst []byte, r *prompt.Request) ([]byte, tokens.Specials, error) {
	if declined(r) {
		return dst, tokens.WithoutSpecials, ErrDeclined
	}
	return f.model.text(dst, r, f.dialect)
}

// Tokenize implements [prompt.Tokenizer].
func (f *Files) Tokenize(_ context.Context, r *prompt.Request, dst []uint32) ([]uint32, error) {
	text, specials, err := f.Text(nil, r)
	if err != nil {
		return dst, err
	}
	return f.model.tokens.Encode(dst, text, specials)
}

// text appends the text of r, which must not be [declined], to dst, and says
// whether the engine adds special tokens to it.
func (m *model) text(dst []byte, r *prompt.Request, d template.Dialect) ([]byte, tokens.Specials, error) {
	specials := tokens.WithoutSpecials
	switch r.Kind {
	case prompt.Completions:
		p, _ := r.Prompt()
		dst = p.AppendTo(dst)
		specials = tokens.WithSpecials // engines add them to plain prompts (Infera defect K2)
	case prompt.Chat:
		var err error
		if dst, err = m.render(dst, r, d); err != nil {
			return dst, specials, err
		}
	case prompt.Messages, prompt.Other: // always declined
	}
	switch string(r.Raw("add_special_tokens")) {
	case "true":
		specials = tokens.WithSpecials
	case "false":
		specials = tokens.WithoutSpecials
	}
	return dst, specials, nil
}

// render appends the prompt of a chat to dst.
func (m *model) render(dst []byte, r *prompt.Request, d template.Dialect) ([]byte, error) {
	if m.templates == nil {
		return dst, fmt.Errorf("%w: the model has no chat template", ErrDeclined)
	}
	in, err := template.FromChat(r.Body(), d)
	if err != nil {
		return dst, err
	}
	in.Now = time.Now()
	tpl, err := m.templates.For(&in)
	if err != nil {
		return dst, err
	}
	return tpl.Render(dst, &in, template.Limits{})
}
