package traffic

import (
	"context"
	"fmt"
	"time"
)

// Message is one chat message.
type Message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// Request is one chat completion to ask for.
type Request struct {
	ID           string // unique in the plan, sent as x-request-id
	Conversation int    // index into [Plan.Conversations]
	Turn         int    // 0 for a conversation's first request
	Messages     []Message
	MaxTokens    int
	Words        int // of all messages of a generated prompt; 0 for one of a trace

	// Wait is the time from the end of the conversation's last answer to this
	// request; for the first request, from the start of the plan.
	Wait time.Duration

	// Tokens is the prompt as the engines count it; nil until [Plan.Tokenize].
	Tokens []uint32
}

// Conversation is requests of which each waits for the answer to the last.
type Conversation struct{ Requests []Request }

// Plan is what to send, in order of the conversations' starts.
type Plan struct{ Conversations []Conversation }

// Len returns the number of requests.
func (p *Plan) Len() int {
	n := 0
	for i := range p.Conversations {
		n += len(p.Conversations[i].Requests)
	}
	return n
}

// PromptTokens returns the tokens of all prompts; 0 until [Plan.Tokenize].
func (p *Plan) PromptTokens() int {
	n := 0
	for i := range p.Conversations {
		for j := range p.Conversations[i].Requests {
			n += len(p.Conversations[i].Requests[j].Tokens)
		}
	}
	return n
}

// Tokenize fills in each request's token ids by asking tokenize, which is the
// engines' own tokenizer and template.
func (p *Plan) Tokenize(ctx context.Context, tokenize func(context.Context, []Message) ([]uint32, error)) error {
	for i := range p.Conversations {
		requests := p.Conversations[i].Requests
		for j := range requests {
			ids, err := tokenize(ctx, requests[j].Messages)
			if err != nil {
				return fmt.Errorf("tokens of request %s: %w", requests[j].ID, err)
			}
			requests[j].Tokens = ids
		}
	}
	return nil
}

// requestID names a request after its place in the plan.
func requestID(conversation, turn int) string {
	return fmt.Sprintf("c%04d-t%02d", conversation, turn)
}
