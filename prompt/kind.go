package prompt

import "strings"

// Kind is the API that a request speaks.
type Kind uint8

// The APIs whose prompts are understood. Every other path is [Other].
const (
	Other       Kind = iota // passed through, picked by load
	Chat                    // OpenAI /v1/chat/completions
	Completions             // OpenAI /v1/completions
	Messages                // Anthropic /v1/messages
)

// String returns a short lower-case name, fit for a metric label.
func (k Kind) String() string {
	switch k {
	case Chat:
		return "chat"
	case Completions:
		return "completions"
	case Messages:
		return "messages"
	default:
		return "other"
	}
}

// KindOf tells the API by the request path. A query string, trailing slashes and
// any prefix before the API's own path (/v1, /openai/v1, none) do not matter.
func KindOf(path string) Kind {
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	path = strings.TrimRight(path, "/")
	switch {
	case endsWith(path, "chat/completions"):
		return Chat
	case endsWith(path, "completions"):
		return Completions
	// "messages" alone is too common a last segment (threads, conversations).
	case endsWith(path, "v1/messages"), path == "/messages":
		return Messages
	}
	return Other
}

// endsWith reports whether path ends with the whole segments of tail.
func endsWith(path, tail string) bool {
	rest, ok := strings.CutSuffix(path, tail)
	return ok && (rest == "" || strings.HasSuffix(rest, "/"))
}
