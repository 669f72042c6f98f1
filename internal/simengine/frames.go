package simengine

import (
	"encoding/json"
	"strconv"
)

// framer writes the events of one stream, in their order. Implementations append to
// dst.
type framer interface {
	open(dst []byte, c int, u usage) []byte // before the first text of choice c
	delta(dst []byte, c int, text string) []byte
	finish(dst []byte, c int, reason string, u usage) []byte
	usage(dst []byte, u usage) []byte // after all choices; nothing unless asked for
	failure(dst []byte, message string) []byte
	done() string // the end marker, "" for none
}

// quote appends s as a JSON string.
func quote(dst []byte, s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string always marshals
		return append(dst, `""`...)
	}
	return append(dst, b...)
}

// openAIFrames frames chat completions and legacy completions.
type openAIFrames struct {
	head  string // everything up to the choices
	chat  bool
	count bool // include_usage
}

func newOpenAIFrames(id, model string, created int64, chat, count bool) *openAIFrames {
	object := "text_completion"
	if chat {
		object = "chat.completion.chunk"
	}
	b := append([]byte(nil), `data: {"id":`...)
	b = append(quote(b, id), `,"object":"`...)
	b = append(append(b, object...), `","created":`...)
	b = append(strconv.AppendInt(b, created, 10), `,"model":`...)
	b = append(quote(b, model), `,"choices":[`...)
	return &openAIFrames{head: string(b), chat: chat, count: count}
}

func (f *openAIFrames) choice(dst []byte, c int) []byte {
	dst = append(dst, f.head...)
	dst = append(dst, `{"index":`...)
	return strconv.AppendInt(dst, int64(c), 10)
}

func (f *openAIFrames) open(dst []byte, c int, _ usage) []byte {
	if !f.chat {
		return dst
	}
	return append(f.choice(dst, c), `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

func (f *openAIFrames) delta(dst []byte, c int, text string) []byte {
	dst = f.choice(dst, c)
	if f.chat {
		dst = quote(append(dst, `,"delta":{"content":`...), text)
		return append(dst, `},"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
	}
	dst = quote(append(dst, `,"text":`...), text)
	return append(dst, `,"logprobs":null,"finish_reason":null}]}`+"\n\n"...)
}

func (f *openAIFrames) finish(dst []byte, c int, reason string, _ usage) []byte {
	dst = f.choice(dst, c)
	if f.chat {
		dst = append(dst, `,"delta":{},"logprobs":null,"finish_reason":`...)
	} else {
		dst = append(dst, `,"text":"","logprobs":null,"finish_reason":`...)
	}
	return append(quote(dst, reason), "}]}\n\n"...)
}

func (f *openAIFrames) usage(dst []byte, u usage) []byte {
	if !f.count {
		return dst
	}
	b, err := json.Marshal(u)
	if err != nil { // numbers always marshal
		return dst
	}
	dst = append(append(dst, f.head...), `],"usage":`...)
	return append(append(dst, b...), "}\n\n"...)
}

func (f *openAIFrames) failure(dst []byte, message string) []byte {
	dst = quote(append(dst, `data: {"error":{"message":`...), message)
	return append(dst, `,"type":"InternalServerError","param":null,"code":500}}`+"\n\n"...)
}

func (f *openAIFrames) done() string { return "data: [DONE]\n\n" }

// anthropicFrames frames /v1/messages.
type anthropicFrames struct{ id, model string }

// event appends one named event.
func (f *anthropicFrames) event(dst []byte, name string, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil { // maps of strings and numbers always marshal
		return dst
	}
	dst = append(append(dst, "event: "...), name...)
	dst = append(append(dst, "\ndata: "...), b...)
	return append(dst, "\n\n"...)
}

func (f *anthropicFrames) open(dst []byte, _ int, u usage) []byte {
	message := anthropicMessage{
		ID: f.id, Type: "message", Role: "assistant", Model: f.model, Content: []anthropicBlock{},
		Usage: anthropicUsage{Input: u.PromptTokens - u.Details.CachedTokens, CacheRead: u.Details.CachedTokens},
	}
	dst = f.event(dst, "message_start", map[string]any{"type": "message_start", "message": message})
	return f.event(dst, "content_block_start", map[string]any{
		"type": "content_block_start", "index": 0, "content_block": map[string]string{"type": "text", "text": ""},
	})
}

func (f *anthropicFrames) delta(dst []byte, _ int, text string) []byte {
	return f.event(dst, "content_block_delta", map[string]any{
		"type": "content_block_delta", "index": 0, "delta": map[string]string{"type": "text_delta", "text": text},
	})
}

func (f *anthropicFrames) finish(dst []byte, _ int, reason string, u usage) []byte {
	dst = f.event(dst, "content_block_stop", map[string]any{"type": "content_block_stop", "index": 0})
	return f.event(dst, "message_delta", map[string]any{
		"type":  "message_delta",
		"delta": map[string]any{"stop_reason": anthropicReason(reason), "stop_sequence": nil},
		"usage": map[string]int{"output_tokens": u.CompletionTokens},
	})
}

func (f *anthropicFrames) usage(dst []byte, _ usage) []byte { return dst }

func (f *anthropicFrames) failure(dst []byte, message string) []byte {
	return f.event(dst, "error", map[string]any{
		"type": "error", "error": map[string]string{"type": "api_error", "message": message},
	})
}

func (f *anthropicFrames) done() string {
	return string(f.event(nil, "message_stop", map[string]string{"type": "message_stop"}))
}

// anthropicReason translates OpenAI's finish reason.
func anthropicReason(reason string) string {
	if reason == "length" {
		return "max_tokens"
	}
	return "end_turn"
}

// anthropicMessage is the answer of /v1/messages.
type anthropicMessage struct {
	ID         string           `json:"id"`
	Type       string           `json:"type"`
	Role       string           `json:"role"`
	Model      string           `json:"model"`
	Content    []anthropicBlock `json:"content"`
	StopReason *string          `json:"stop_reason"`
	StopSeq    *string          `json:"stop_sequence"`
	Usage      anthropicUsage   `json:"usage"`
}

type anthropicBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type anthropicUsage struct {
	Input     int `json:"input_tokens"`
	CacheRead int `json:"cache_read_input_tokens"`
	Output    int `json:"output_tokens"`
}
