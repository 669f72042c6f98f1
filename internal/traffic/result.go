package traffic

import (
	"encoding/json"
	"time"
)

// Result is what became of one request.
type Result struct {
	Request *Request
	Worker  string // which worker the answer's header names; "" for none
	Status  int    // 0 when there was no answer

	Sent  time.Time // when the request went out
	First time.Time // first event with text; zero for none
	End   time.Time // the last byte

	Texts  int  // events with text
	Errors int  // error events
	Dones  int  // [DONE] events
	After  int  // events after the first terminal one
	Finish bool // a finish_reason was seen

	PromptTokens     int // from usage: what the engine counted
	CachedTokens     int // of them, what it had in its cache
	CompletionTokens int

	Err    error  // connection or protocol failure; nil after a clean end
	Detail string // the start of an error body or of an error event
}

// Outcome is a result in one word.
type Outcome uint8

// The outcomes. Only Failed is the product's fault.
const (
	// Failed is everything a client should not see.
	Failed Outcome = iota
	// OK is a whole answer: status 200, a finish reason, one [DONE], no error.
	OK
	// Interrupted is an answer that had begun when its worker was lost, and that
	// says so: some text, then exactly one error event, then the end.
	Interrupted
)

// String returns failed, ok or interrupted.
func (o Outcome) String() string { return [...]string{"failed", "ok", "interrupted"}[o] }

// Outcome judges a streamed answer.
func (r *Result) Outcome() Outcome {
	switch {
	case r.Err != nil || r.Status != 200 || r.After > 0:
		return Failed
	case r.Dones == 1 && r.Errors == 0 && r.Finish && r.Texts > 0:
		return OK
	case r.Dones == 0 && r.Errors == 1 && r.Texts > 0:
		return Interrupted
	}
	return Failed
}

// TTFT returns the time to the first text; 0 when there was none.
func (r *Result) TTFT() time.Duration {
	if r.First.IsZero() {
		return 0
	}
	return r.First.Sub(r.Sent)
}

// chunk is the part of a stream's event that is judged.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// event books one event of the stream.
func (r *Result) event(data []byte, now time.Time) {
	if r.Dones+r.Errors > 0 {
		r.After++
		return
	}
	if string(data) == "[DONE]" {
		r.Dones++
		return
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		r.Errors++
		r.Detail = "an event that is no JSON: " + excerpt(data)
		return
	}
	if len(c.Error) > 0 {
		r.Errors++
		r.Detail = excerpt(data)
		return
	}
	for _, choice := range c.Choices {
		if choice.Delta.Content != "" {
			if r.Texts == 0 {
				r.First = now
			}
			r.Texts++
		}
		r.Finish = r.Finish || choice.FinishReason != nil
	}
	if c.Usage != nil {
		r.PromptTokens, r.CompletionTokens = c.Usage.PromptTokens, c.Usage.CompletionTokens
		r.CachedTokens = c.Usage.Details.Cached
	}
}

// excerpt returns the start of b, for messages.
func excerpt(b []byte) string {
	if len(b) > 300 {
		b = b[:300]
	}
	return string(b)
}
