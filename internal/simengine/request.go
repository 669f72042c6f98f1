package simengine

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"pointsman/wire"
)

// apiError is an answer other than success, in OpenAI's shape.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
}

func (e *apiError) Error() string { return e.message }

// badRequest returns a 400 about one field.
func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: fmt.Sprintf(format, args...), param: param}
}

// body is a request's JSON object.
type body map[string]json.RawMessage

func parseBody(raw []byte) (body, *apiError) {
	var b body
	if err := json.Unmarshal(raw, &b); err != nil {
		return nil, badRequest("", "the body is not a JSON object: %v", err)
	}
	if b == nil {
		return nil, badRequest("", "the body is not a JSON object: null")
	}
	return b, nil
}

// get decodes field name into dst, which keeps its value when the field is
// absent or null.
func (b body) get(name string, dst any) *apiError {
	raw, ok := b[name]
	if !ok || string(raw) == "null" {
		return nil
	}
	if err := json.Unmarshal(raw, dst); err != nil {
		return badRequest(name, "%s: %v", name, err)
	}
	return nil
}

func (b body) fields() []string { return slices.Sorted(maps.Keys(b)) }

// stopList is a string or an array of strings.
type stopList []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *stopList) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '"' {
		*s = stopList{""}
		return json.Unmarshal(raw, &(*s)[0])
	}
	return json.Unmarshal(raw, (*[]string)(s))
}

// sampling is what decides an output's length.
type sampling struct {
	n         int
	max       int // -1: no bound of the request's own
	min       int
	ignoreEOS bool
	stop      stopList
}

// job is one inference request, understood.
type job struct {
	model        string
	stream       bool
	includeUsage bool
	prompts      [][]uint32
	choices      []*choice
	handoff      any // where a prefill leg's KV cache lies; nil for none
}

// choice is one sequence of a job and the text it will produce.
type choice struct {
	seq    *sequence
	pieces []string // text of each output token; the last may be cut by a stop string
	reason string   // finish reason
	sent   int      // tokens written
	opened bool     // its first event was written
	closed bool     // its last event was written
}

// text returns the choice's whole output.
func (c *choice) text() string { return strings.Join(c.pieces, "") }

// common reads the fields that chat, completions and messages share.
func (b body) common(j *job, s *sampling) *apiError {
	s.n, s.max = 1, -1
	var opts struct {
		IncludeUsage bool `json:"include_usage"`
	}
	for _, f := range []struct {
		name string
		dst  any
	}{
		{"stream", &j.stream},
		{"n", &s.n},
		{"max_tokens", &s.max},
		{"max_completion_tokens", &s.max},
		{"min_tokens", &s.min},
		{"ignore_eos", &s.ignoreEOS},
		{"stop", &s.stop},
		{"stop_sequences", &s.stop},
		{"stream_options", &opts},
	} {
		if err := b.get(f.name, f.dst); err != nil {
			return err
		}
	}
	j.includeUsage = opts.IncludeUsage
	switch {
	case s.n < 1 || s.n > 128:
		return badRequest("n", "n is %d: give 1 to 128", s.n)
	case s.max == 0 || s.max < -1:
		return badRequest("max_tokens", "max_tokens is %d: give at least 1", s.max)
	case s.min < 0:
		return badRequest("min_tokens", "min_tokens is %d: give 0 or more", s.min)
	case slices.Contains(s.stop, ""):
		return badRequest("stop", "a stop string is empty")
	}
	return nil
}

// modelOf checks the model name and returns it.
func (e *Engine) modelOf(b body) (string, *apiError) {
	model := e.cfg.Model
	if err := b.get("model", &model); err != nil {
		return "", err
	}
	if model != e.cfg.Model && !slices.Contains(e.cfg.LoRA, model) {
		return "", &apiError{
			status: http.StatusNotFound, kind: "NotFoundError", param: "model",
			message: fmt.Sprintf("The model `%s` does not exist.", model),
		}
	}
	return model, nil
}

// chatTokens renders the messages of a chat or messages request.
func (e *Engine) chatTokens(b body) ([]uint32, *apiError) {
	if e.files != nil {
		return e.files.chat(b)
	}
	var c chat
	if err := b.get("messages", &c.Messages); err != nil {
		return nil, err
	}
	if len(c.Messages) == 0 {
		return nil, badRequest("messages", "messages: give at least one")
	}
	c.Tools, c.SystemPrompt = b["tools"], b["system"]
	if err := b.get("add_generation_prompt", &c.AddPrompt); err != nil {
		return nil, err
	}
	if err := b.get("continue_final_message", &c.Continue); err != nil {
		return nil, err
	}
	tokens, err := appendChat(nil, &c)
	if err != nil {
		return nil, badRequest("messages", "%v", err)
	}
	return tokens, nil
}

// promptTokens reads a prompt (or an embedding's input): a string, an array of
// strings, token ids, or an array of arrays of token ids.
func (e *Engine) promptTokens(b body, field string) ([][]uint32, *apiError) {
	special := true
	if err := b.get("add_special_tokens", &special); err != nil {
		return nil, err
	}
	raw := b[field]
	var text string
	if json.Unmarshal(raw, &text) == nil && len(raw) > 0 && raw[0] == '"' {
		ids, err := e.textTokens(text, special)
		return [][]uint32{ids}, err
	}
	var ids []uint32
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return [][]uint32{ids}, nil
	}
	var texts []string
	if json.Unmarshal(raw, &texts) == nil && len(texts) > 0 {
		out := make([][]uint32, len(texts))
		for i, t := range texts {
			var err *apiError
			if out[i], err = e.textTokens(t, special); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	var lists [][]uint32
	if json.Unmarshal(raw, &lists) == nil && len(lists) > 0 && !slices.ContainsFunc(lists, func(l []uint32) bool { return len(l) == 0 }) {
		return lists, nil
	}
	return nil, badRequest(field, "%s: give a string, token ids, or a list of either, not empty", field)
}

// textTokens tokenizes plain text.
func (e *Engine) textTokens(text string, special bool) ([]uint32, *apiError) {
	if e.files != nil {
		return e.files.text(text, special)
	}
	var out []uint32
	if special && e.cfg.BOS {
		out = append(out, tokBOS)
	}
	return appendTokens(out, text), nil
}

// chatJob reads a chat completion or an Anthropic messages request.
func (e *Engine) chatJob(b body) (*job, *apiError) {
	j := &job{}
	var s sampling
	if err := b.common(j, &s); err != nil {
		return nil, err
	}
	tokens, err := e.chatTokens(b)
	if err != nil {
		return nil, err
	}
	j.prompts = [][]uint32{tokens}
	return j, e.prepare(j, b, &s)
}

// completionJob reads a legacy completion.
func (e *Engine) completionJob(b body) (*job, *apiError) {
	j := &job{}
	var s sampling
	if err := b.common(j, &s); err != nil {
		return nil, err
	}
	prompts, err := e.promptTokens(b, "prompt")
	if err != nil {
		return nil, err
	}
	j.prompts = prompts
	return j, e.prepare(j, b, &s)
}

// prepare builds the choices of j: n for each prompt.
func (e *Engine) prepare(j *job, b body, s *sampling) *apiError {
	model, err := e.modelOf(b)
	if err != nil {
		return err
	}
	j.model = model
	keys := wire.Keys{}
	if model != e.cfg.Model {
		keys.LoRA = model
	}
	if err := b.get("cache_salt", &keys.Salt); err != nil {
		return err
	}
	notify := make(chan struct{}, 1)
	for i, p := range j.prompts {
		if len(p) == 0 {
			p = []uint32{tokEmpty}
			j.prompts[i] = p
		}
		room := e.cfg.MaxModelLen - len(p)
		if room < 1 || s.max > room {
			return badRequest("max_tokens", "this model's maximum context length is %d tokens; the prompt has %d and %d more were asked for: reduce either",
				e.cfg.MaxModelLen, len(p), max(s.max, 1))
		}
		seed := promptSeed(p)
		for k := range s.n {
			c := e.newChoice(p, seed+uint64(k), s, room)
			c.seq.keys, c.seq.notify = keys, notify
			c.seq.hashes = chainHashes(e.seed, keys, c.seq.tokens, e.cfg.Cache.BlockSize)
			j.choices = append(j.choices, c)
		}
	}
	return nil
}

// promptSeed is the chance that an output depends on: the prompt's alone, so
// that every worker gives the same answer.
func promptSeed(tokens []uint32) uint64 {
	h := chainHashes(0, wire.Keys{}, tokens, len(tokens))
	return h[0]
}

// newChoice decides a sequence's output.
func (e *Engine) newChoice(prompt []uint32, seed uint64, s *sampling, room int) *choice {
	natural := max(1, e.cfg.OutputTokens/2+int(splitmix(seed)%uint64(e.cfg.OutputTokens+1))) //nolint:gosec // small
	natural = max(natural, s.min)
	limit := room
	if s.max > 0 {
		limit = s.max
	}
	out, reason := natural, "stop"
	if natural > limit || (s.ignoreEOS && s.max > 0) {
		out, reason = limit, "length"
	}
	c := &choice{pieces: generate(seed, out), reason: reason}
	if cutAtStop(c, s) {
		c.reason = "stop"
	}
	tokens := make([]uint32, 0, len(prompt)+out)
	tokens = append(tokens, prompt...)
	for _, piece := range c.pieces {
		tokens = append(tokens, pieceID(piece))
	}
	c.seq = &sequence{tokens: tokens, prompt: len(prompt), out: len(c.pieces)}
	return c
}

// cutAtStop ends c's text before the first stop string that min_tokens allows.
func cutAtStop(c *choice, s *sampling) bool {
	text := c.text()
	at := -1
	for _, stop := range s.stop {
		if i := strings.Index(text, stop); i >= 0 && (at < 0 || i < at) {
			at = i
		}
	}
	if at < 0 {
		return false
	}
	for i, p := range c.pieces {
		if at < len(p) {
			if i+1 <= s.min {
				return false
			}
			c.pieces = c.pieces[:i+1]
			c.pieces[i] = p[:at]
			return true
		}
		at -= len(p)
	}
	return false
}

// usage is OpenAI's token count.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	TotalTokens      int `json:"total_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Details          struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usageOf counts choice c alone. It may be read once c has produced a token.
func usageOf(c *choice) usage {
	u := usage{PromptTokens: c.seq.prompt, CompletionTokens: int(c.seq.produced.Load())}
	u.Details.CachedTokens = c.seq.cached
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// usage counts each prompt once and every output token. It may be read once all
// choices are finished.
func (j *job) usage() usage {
	var u usage
	n := max(1, len(j.choices)/max(1, len(j.prompts)))
	for i, c := range j.choices {
		if i%n == 0 {
			u.PromptTokens += c.seq.prompt
			u.Details.CachedTokens += c.seq.cached
		}
		u.CompletionTokens += int(c.seq.produced.Load())
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}
