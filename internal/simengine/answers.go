package simengine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
)

// openAIAnswer is a unary chat completion, legacy completion or embedding list.
type openAIAnswer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices,omitempty"`
	Data    []any  `json:"data,omitempty"`
	Usage   usage  `json:"usage"`
	Handoff any    `json:"kv_transfer_params,omitempty"` // vLLM's name
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type chatChoice struct {
	Index    int         `json:"index"`
	Message  chatMessage `json:"message"`
	Logprobs *int        `json:"logprobs"`
	Finish   string      `json:"finish_reason"`
}

func chatAnswer(_ *Engine, id string, created int64, j *job) any {
	a := openAIAnswer{ID: id, Object: "chat.completion", Created: created, Model: j.model, Usage: j.usage(), Handoff: j.handoff}
	for i, c := range j.choices {
		a.Choices = append(a.Choices, chatChoice{Index: i, Message: chatMessage{Role: "assistant", Content: c.text()}, Finish: c.reason})
	}
	return a
}

type textChoice struct {
	Index    int    `json:"index"`
	Text     string `json:"text"`
	Logprobs *int   `json:"logprobs"`
	Finish   string `json:"finish_reason"`
}

func completionAnswer(_ *Engine, id string, created int64, j *job) any {
	a := openAIAnswer{ID: id, Object: "text_completion", Created: created, Model: j.model, Usage: j.usage(), Handoff: j.handoff}
	for i, c := range j.choices {
		a.Choices = append(a.Choices, textChoice{Index: i, Text: c.text(), Finish: c.reason})
	}
	return a
}

func messagesAnswer(_ *Engine, id string, _ int64, j *job) any {
	u := j.usage()
	reason := anthropicReason(j.choices[0].reason)
	return anthropicMessage{
		ID: id, Type: "message", Role: "assistant", Model: j.model, StopReason: &reason,
		Content: []anthropicBlock{{Type: "text", Text: j.choices[0].text()}},
		Usage:   anthropicUsage{Input: u.PromptTokens - u.Details.CachedTokens, CacheRead: u.Details.CachedTokens, Output: u.CompletionTokens},
	}
}

// embeddingDims is the vector length when the request names none.
const embeddingDims = 64

// embeddingJob reads an embeddings request: prompts are computed, nothing is
// generated.
func (e *Engine) embeddingJob(b body) (*job, *apiError) {
	j := &job{}
	var err *apiError
	if j.prompts, err = e.promptTokens(b, "input"); err != nil {
		return nil, err
	}
	dims, format := embeddingDims, "float"
	if err := b.get("dimensions", &dims); err != nil {
		return nil, err
	}
	if err := b.get("encoding_format", &format); err != nil {
		return nil, err
	}
	if dims < 1 || dims > 8192 {
		return nil, badRequest("dimensions", "dimensions is %d: give 1 to 8192", dims)
	}
	if err := e.prepare(j, b, &sampling{n: 1, max: -1}); err != nil {
		return nil, err
	}
	for _, c := range j.choices {
		q := c.seq
		q.tokens, q.out = q.tokens[:q.prompt], 0
		q.hashes = q.hashes[:q.prompt/e.cfg.Cache.BlockSize]
		c.pieces, c.reason = []string{embedding(q.tokens, dims, format)}, ""
	}
	return j, nil
}

// embedding returns the JSON of a unit vector that depends on tokens only.
func embedding(tokens []uint32, dims int, format string) string {
	seed := promptSeed(tokens)
	v := make([]float32, dims)
	norm := 0.0
	for i := range v {
		seed = splitmix(seed)
		x := float64(seed>>11)/(1<<52) - 1
		v[i] = float32(x)
		norm += x * x
	}
	scale := float32(1 / math.Sqrt(max(norm, 1e-12)))
	for i := range v {
		v[i] *= scale
	}
	var out any = v
	if format == "base64" {
		raw := make([]byte, 0, 4*dims)
		for _, x := range v {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
		}
		out = base64.StdEncoding.EncodeToString(raw)
	}
	b, err := json.Marshal(out)
	if err != nil { // finite numbers always marshal
		return "[]"
	}
	return string(b)
}

type embeddingItem struct {
	Object    string          `json:"object"`
	Index     int             `json:"index"`
	Embedding json.RawMessage `json:"embedding"`
}

func embeddingAnswer(_ *Engine, id string, created int64, j *job) any {
	a := openAIAnswer{ID: id, Object: "list", Created: created, Model: j.model, Usage: j.usage()}
	for i, c := range j.choices {
		a.Data = append(a.Data, embeddingItem{Object: "embedding", Index: i, Embedding: json.RawMessage(c.pieces[0])})
		c.pieces = nil // no output tokens
	}
	return a
}
