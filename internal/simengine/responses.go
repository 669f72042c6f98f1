package simengine

import (
	"encoding/json"
	"strings"
)

// responsesAPI is OpenAI's /v1/responses, without its stored state and tools.
func responsesAPI() api {
	return api{
		parse: (*Engine).responsesJob, id: "resp_", unary: responsesAnswer,
		frame: func(id, model string, created int64, _ *job) framer {
			return &responsesFrames{answer: newResponse(id, model, created)}
		},
	}
}

// responsesJob reads a request as the chat that it stands for.
func (e *Engine) responsesJob(b body) (*job, *apiError) {
	var instructions string
	if err := b.get("instructions", &instructions); err != nil {
		return nil, err
	}
	var messages []map[string]any
	if instructions != "" {
		messages = append(messages, map[string]any{"role": "system", "content": instructions})
	}
	input := b["input"]
	var said string
	var items []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	switch {
	case json.Unmarshal(input, &said) == nil && said != "":
		messages = append(messages, map[string]any{"role": "user", "content": said})
	case json.Unmarshal(input, &items) == nil && len(items) > 0:
		for _, it := range items {
			var parts []struct {
				Text string `json:"text"`
			}
			if json.Unmarshal(it.Content, &parts) != nil {
				messages = append(messages, map[string]any{"role": it.Role, "content": it.Content})
				continue
			}
			var text strings.Builder
			for _, p := range parts {
				text.WriteString(p.Text)
			}
			messages = append(messages, map[string]any{"role": it.Role, "content": text.String()})
		}
	default:
		return nil, badRequest("input", "input: give a text or a list of messages, not empty")
	}
	raw, err := json.Marshal(messages)
	if err != nil {
		return nil, badRequest("input", "input: %v", err)
	}
	b["messages"] = raw
	if most, ok := b["max_output_tokens"]; ok {
		b["max_tokens"] = most
	}
	delete(b, "n")
	return e.chatJob(b)
}

// response is the answer, and what the events that open and end a stream hold.
type response struct {
	ID         string           `json:"id"`
	Object     string           `json:"object"`
	Created    int64            `json:"created_at"`
	Status     string           `json:"status"`
	Error      *string          `json:"error"`
	Incomplete map[string]any   `json:"incomplete_details"`
	Model      string           `json:"model"`
	Output     []responseOutput `json:"output"`
	Parallel   bool             `json:"parallel_tool_calls"`
	Choice     string           `json:"tool_choice"`
	Tools      []string         `json:"tools"`
	Usage      *responseUsage   `json:"usage"`
}

type responseOutput struct {
	ID      string         `json:"id"`
	Type    string         `json:"type"`
	Status  string         `json:"status"`
	Role    string         `json:"role"`
	Content []responseText `json:"content"`
}

type responseText struct {
	Type        string   `json:"type"`
	Text        string   `json:"text"`
	Annotations []string `json:"annotations"`
}

type responseUsage struct {
	Input        int            `json:"input_tokens"`
	InputDetails map[string]int `json:"input_tokens_details"`
	Output       int            `json:"output_tokens"`
	Details      map[string]int `json:"output_tokens_details"`
	Total        int            `json:"total_tokens"`
}

func newResponse(id, model string, created int64) response {
	return response{
		ID: id, Object: "response", Created: created, Status: "in_progress", Model: model,
		Output: []responseOutput{}, Parallel: true, Choice: "auto", Tools: []string{},
	}
}

// complete fills in what has been generated.
func (r *response) complete(text, reason string, u usage) {
	r.Status = "completed"
	if reason == "length" {
		r.Status, r.Incomplete = "incomplete", map[string]any{"reason": "max_output_tokens"}
	}
	r.Output = []responseOutput{{
		ID: "msg_" + r.ID, Type: "message", Status: r.Status, Role: "assistant",
		Content: []responseText{{Type: "output_text", Text: text, Annotations: []string{}}},
	}}
	r.Usage = &responseUsage{
		Input: u.PromptTokens, InputDetails: map[string]int{"cached_tokens": u.Details.CachedTokens},
		Output: u.CompletionTokens, Details: map[string]int{"reasoning_tokens": 0}, Total: u.TotalTokens,
	}
}

func responsesAnswer(_ *Engine, id string, created int64, j *job) any {
	r := newResponse(id, j.model, created)
	r.complete(j.choices[0].text(), j.choices[0].reason, j.usage())
	return r
}

// responsesFrames frames /v1/responses. Its events are numbered, and the last one
// repeats the text, so it has a state.
type responsesFrames struct {
	answer response
	next   int
	text   strings.Builder
}

func (f *responsesFrames) event(dst []byte, name string, v map[string]any) []byte {
	v["type"], v["sequence_number"] = name, f.next
	f.next++
	b, err := json.Marshal(v)
	if err != nil { // strings and numbers always marshal
		return dst
	}
	dst = append(append(dst, "event: "...), name...)
	dst = append(append(dst, "\ndata: "...), b...)
	return append(dst, "\n\n"...)
}

// at is where in the output an event belongs.
func (f *responsesFrames) at(more map[string]any) map[string]any {
	more["output_index"], more["content_index"], more["item_id"] = 0, 0, "msg_"+f.answer.ID
	return more
}

func (f *responsesFrames) open(dst []byte, _ int, _ usage) []byte {
	dst = f.event(dst, "response.created", map[string]any{"response": f.answer})
	dst = f.event(dst, "response.in_progress", map[string]any{"response": f.answer})
	dst = f.event(dst, "response.output_item.added", map[string]any{"output_index": 0, "item": responseOutput{
		ID: "msg_" + f.answer.ID, Type: "message", Status: "in_progress", Role: "assistant", Content: []responseText{},
	}})
	return f.event(dst, "response.content_part.added", f.at(map[string]any{"part": responseText{Type: "output_text", Annotations: []string{}}}))
}

func (f *responsesFrames) delta(dst []byte, _ int, text string) []byte {
	f.text.WriteString(text)
	return f.event(dst, "response.output_text.delta", f.at(map[string]any{"delta": text, "logprobs": []string{}}))
}

func (f *responsesFrames) finish(dst []byte, _ int, reason string, u usage) []byte {
	f.answer.complete(f.text.String(), reason, u)
	item := f.answer.Output[0]
	dst = f.event(dst, "response.output_text.done", f.at(map[string]any{"text": f.text.String(), "logprobs": []string{}}))
	dst = f.event(dst, "response.content_part.done", f.at(map[string]any{"part": item.Content[0]}))
	return f.event(dst, "response.output_item.done", map[string]any{"output_index": 0, "item": item})
}

func (f *responsesFrames) usage(dst []byte, _ usage) []byte { return dst }

func (f *responsesFrames) failure(dst []byte, message string) []byte {
	return f.event(dst, "error", map[string]any{"code": "server_error", "message": message, "param": nil})
}

func (f *responsesFrames) done() string {
	return string(f.event(nil, "response."+f.answer.Status, map[string]any{"response": f.answer}))
}
