package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// engineConfig is what engines take from tokenizer_config.json: they load a
// tokenizer.json through transformers, which changes it by these rules (read in
// transformers 4.57: tokenization_utils_fast.py, models/{llama,gemma,cohere,
// code_llama}/tokenization_*_fast.py).
type engineConfig struct {
	Class          string                `json:"tokenizer_class"`
	AddBOS         *bool                 `json:"add_bos_token"`
	AddEOS         *bool                 `json:"add_eos_token"`
	AddPrefixSpace *bool                 `json:"add_prefix_space"`
	BOS            configToken           `json:"bos_token"`
	EOS            configToken           `json:"eos_token"`
	UNK            configToken           `json:"unk_token"`
	PAD            configToken           `json:"pad_token"`
	Added          map[string]AddedToken `json:"added_tokens_decoder"`
	Additional     []configToken         `json:"additional_special_tokens"`
}

// configToken is a token that is written as a string or as an object.
type configToken string

// UnmarshalJSON reads either form; null is no token.
func (t *configToken) UnmarshalJSON(raw []byte) error {
	var object struct {
		Content string `json:"content"`
	}
	if len(raw) > 0 && raw[0] == '{' {
		err := json.Unmarshal(raw, &object)
		*t = configToken(object.Content)
		return err
	}
	return json.Unmarshal(raw, (*string)(t))
}

// readConfig applies the tokenizer_config.json at path, if there is one.
func (t *Tokenizer) readConfig(path string) error {
	raw, err := readLimited(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c engineConfig
	if err = json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%s: %w", path, malformed("%v", err))
	}
	t.bos, t.eos = string(c.BOS), string(c.EOS)
	if t.chunked { // not loaded from a tokenizer.json
		return nil
	}
	if err = t.applyConfig(&c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func (t *Tokenizer) applyConfig(c *engineConfig) error {
	if err := t.checkConfigTokens(c); err != nil {
		return err
	}
	class := strings.TrimSuffix(c.Class, "Fast")
	if class == "LlamaTokenizer" && c.AddPrefixSpace != nil {
		return unsupported("tokenizer_config", "%s with add_prefix_space is rebuilt by the engine from another file", c.Class)
	}
	if t.pre.prefixable {
		t.pre.prefixSpace = c.AddPrefixSpace != nil && *c.AddPrefixSpace
	}
	// These classes put their own template in place of the file's post-processor.
	if !slices.Contains([]string{"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"}, class) {
		return nil
	}
	t.around = around{}
	var err error
	if c.AddBOS == nil || *c.AddBOS {
		if t.around.before, err = t.oneToken("bos_token", t.bos); err != nil {
			return err
		}
	}
	if c.AddEOS != nil && *c.AddEOS {
		t.around.after, err = t.oneToken("eos_token", t.eos)
	}
	return err
}

func (t *Tokenizer) oneToken(role, name string) ([]uint32, error) {
	for i := range t.added {
		if t.added[i].Content == name {
			return []uint32{t.added[i].ID}, nil
		}
	}
	return nil, unsupported("tokenizer_config", "%s %q is to be added and is not an added token", role, name)
}

// checkConfigTokens refuses a config that names tokens which the engine adds to
// those of tokenizer.json.
func (t *Tokenizer) checkConfigTokens(c *engineConfig) error {
	names := append([]configToken{c.BOS, c.EOS, c.UNK, c.PAD}, c.Additional...)
	for _, a := range c.Added {
		names = append(names, configToken(a.Content))
	}
	for _, name := range names {
		known := slices.ContainsFunc(t.added, func(a AddedToken) bool { return a.Content == string(name) })
		if name != "" && !known {
			return unsupported("tokenizer_config", "it adds the token %q", name)
		}
	}
	return nil
}
