package simengine

import (
	"encoding/json"
	"fmt"
)

// message is one chat message, in OpenAI's or Anthropic's shape.
type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// part is one element of a message's content array.
type part struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	ImageURL json.RawMessage `json:"image_url"`
	Source   json.RawMessage `json:"source"`
}

// chat is what the template renders.
type chat struct {
	Messages     []message       `json:"messages"`
	Tools        json.RawMessage `json:"tools"`
	AddPrompt    *bool           `json:"add_generation_prompt"`
	Continue     bool            `json:"continue_final_message"`
	SystemPrompt json.RawMessage `json:"-"` // Anthropic's top-level system
}

// roleToken is the special token that opens a message.
func roleToken(role string) uint32 {
	switch role {
	case "system", "developer":
		return tokSystem
	case "user":
		return tokUser
	case "assistant":
		return tokAssistant
	case "tool", "function":
		return tokTool
	}
	return tokOther
}

// imageTokens is how many tokens one image takes.
const imageTokens = 16

// appendChat renders c: tools first, then each message as its role's token, its
// text and an end-of-turn token, then the token that asks for an answer. Adding
// a message never changes what was rendered for the messages before it.
func appendChat(dst []uint32, c *chat) ([]uint32, error) {
	if len(c.Tools) > 0 && string(c.Tools) != "null" {
		dst = append(dst, tokTools)
		dst = appendTokens(dst, string(c.Tools))
		dst = append(dst, tokEndOfTurn)
	}
	var err error
	if len(c.SystemPrompt) > 0 {
		if dst, err = appendMessage(dst, &message{Role: "system", Content: c.SystemPrompt}); err != nil {
			return nil, fmt.Errorf("system: %w", err)
		}
		dst = append(dst, tokEndOfTurn)
	}
	for i := range c.Messages {
		if dst, err = appendMessage(dst, &c.Messages[i]); err != nil {
			return nil, fmt.Errorf("messages[%d]: %w", i, err)
		}
		if i < len(c.Messages)-1 || !c.Continue {
			dst = append(dst, tokEndOfTurn)
		}
	}
	if !c.Continue && (c.AddPrompt == nil || *c.AddPrompt) {
		dst = append(dst, tokAssistant)
	}
	return dst, nil
}

// appendMessage renders one message without its end.
func appendMessage(dst []uint32, m *message) ([]uint32, error) {
	dst = append(dst, roleToken(m.Role))
	dst, err := appendContent(dst, m.Content)
	if err != nil {
		return nil, err
	}
	if len(m.ToolCalls) > 0 && string(m.ToolCalls) != "null" {
		dst = append(dst, tokTool)
		dst = appendTokens(dst, string(m.ToolCalls))
	}
	return dst, nil
}

// appendContent renders a string, an array of parts, or nothing for null.
func appendContent(dst []uint32, raw json.RawMessage) ([]uint32, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return dst, nil
	}
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, fmt.Errorf("content: %w", err)
		}
		return appendTokens(dst, s), nil
	}
	var parts []part
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, fmt.Errorf("content: give a string or an array of parts: %w", err)
	}
	for i := range parts {
		dst = appendPart(dst, &parts[i])
	}
	return dst, nil
}

// appendPart renders text as text and anything else as a fixed number of tokens
// that depend on its reference.
func appendPart(dst []uint32, p *part) []uint32 {
	if p.Type == "text" || p.Type == "input_text" {
		return appendTokens(dst, p.Text)
	}
	dst = append(dst, tokImage)
	id := pieceID(string(p.ImageURL) + string(p.Source))
	for k := range uint32(imageTokens - 1) {
		dst = append(dst, firstWord+(id+k)%(vocabSize-firstWord))
	}
	return dst
}
