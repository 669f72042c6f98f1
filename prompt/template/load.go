package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
)

// maxConfig bounds the files that Load reads, in bytes.
const maxConfig = 16 << 20

// Set is a model's templates by name. It is immutable.
type Set struct {
	templates map[string]*Template
	special   []Special
}

// Load reads the chat templates of a model's directory, as transformers does:
// chat_template.jinja (and additional_chat_templates/*.jinja) before
// chat_template.json before tokenizer_config.json, whose chat_template is text or a
// list of names and templates. Special tokens come from tokenizer_config.json.
// Without any template it returns [ErrNoTemplate]; one template that cannot be
// compiled fails the whole set.
func Load(dir string) (*Set, error) {
	sources := map[string]string{}
	var special []Special
	config, err := readJSON(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	if config != nil {
		special = specialTokens(config)
		if err = addSources(sources, config["chat_template"]); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: %w", err)
		}
	}
	processor, err := readJSON(filepath.Join(dir, "chat_template.json"))
	if err != nil {
		return nil, err
	}
	if processor != nil {
		if err = addSources(sources, processor["chat_template"]); err != nil {
			return nil, fmt.Errorf("chat_template.json: %w", err)
		}
	}
	if err = addFiles(sources, dir); err != nil {
		return nil, err
	}
	return NewSet(sources, special)
}

// NewSet compiles templates by name. The name "default" is the one without tools.
func NewSet(sources map[string]string, special []Special) (*Set, error) {
	if len(sources) == 0 {
		return nil, ErrNoTemplate
	}
	s := &Set{templates: make(map[string]*Template, len(sources)), special: special}
	for name, src := range sources {
		t, err := Parse(name, src)
		if err != nil {
			return nil, err
		}
		s.templates[name] = t.WithSpecial(special)
	}
	return s, nil
}

// Template returns the template of a name, such as "rag", or nil.
func (s *Set) Template(name string) *Template { return s.templates[name] }

// For returns the template that transformers takes for an input: tool_use when
// there are tools and such a template, else default. A set without either has none:
// [ErrNoTemplate].
func (s *Set) For(in *Input) (*Template, error) {
	if t := s.templates["tool_use"]; t != nil && len(in.Tools) > 0 && string(in.Tools) != "null" {
		return t, nil
	}
	if t := s.templates["default"]; t != nil {
		return t, nil
	}
	return nil, ErrNoTemplate
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the operator names the model's directory
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() > maxConfig {
		return nil, fmt.Errorf("%s: larger than 16 MiB: %w", path, ErrUnsupported)
	}
	return os.ReadFile(path) //nolint:gosec // as above
}

func readJSON(path string) (map[string]json.RawMessage, error) {
	raw, err := readFile(path)
	if raw == nil || err != nil {
		return nil, err
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return m, nil
}

// addSources adds what a chat_template field holds.
func addSources(sources map[string]string, raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		sources["default"] = text
		return nil
	}
	var byName map[string]string
	if json.Unmarshal(raw, &byName) == nil {
		maps.Copy(sources, byName)
		return nil
	}
	var named []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &named); err != nil {
		return fmt.Errorf("chat_template is neither text nor a list of name and template: %w", err)
	}
	for _, n := range named {
		sources[n.Name] = n.Template
	}
	return nil
}

// addFiles adds the directory's .jinja files, which win over the configuration.
func addFiles(sources map[string]string, dir string) error {
	main, err := readFile(filepath.Join(dir, "chat_template.jinja"))
	if err != nil {
		return err
	}
	if main != nil {
		sources["default"] = string(main)
	}
	extra, err := filepath.Glob(filepath.Join(dir, "additional_chat_templates", "*.jinja"))
	if err != nil {
		return err
	}
	for _, path := range extra {
		raw, err := readFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		sources[name[:len(name)-len(".jinja")]] = string(raw)
	}
	return nil
}

// specialTokens reads transformers' special_tokens_map: those that are set.
func specialTokens(config map[string]json.RawMessage) []Special {
	var out []Special
	for _, name := range [...]string{
		"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
	} {
		var text string
		if json.Unmarshal(config[name], &text) != nil {
			var added struct{ Content string }
			if json.Unmarshal(config[name], &added) != nil {
				continue
			}
			text = added.Content
		}
		if text != "" {
			out = append(out, Special{name, text})
		}
	}
	return out
}
