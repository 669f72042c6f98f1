package remote

import (
	"pointsman/prompt"
)

// unsupported reports whether the engine makes something else of r than its
// /tokenize would: that has no field for what the request says.
func unsupported(r *prompt.Request) bool {
	if r.Base == "" { // the name stands for different models on different workers
		return true
	}
	switch r.Kind {
	case prompt.Chat:
		// Whether the tools are rendered is then up to a flag of the engine.
		hidesTools := r.Tools && string(r.Raw("tool_choice")) == `"none"`
		return r.Multimodal || hidesTools || !r.Set("messages") || r.Set("documents") ||
			r.Set("functions") || r.Set("reasoning_effort") || r.Set("truncate_prompt_tokens")
	case prompt.Completions:
		_, ok := r.Prompt()
		return !ok || r.Set("truncate_prompt_tokens") || r.Set("prompt_embeds")
	case prompt.Messages, prompt.Other: // no engine's /tokenize takes Anthropic's form
		return true
	}
	return true
}

// size returns how many bytes the worker has to tokenize, about.
func size(r *prompt.Request) int {
	if t, ok := r.Prompt(); ok {
		return len(t.Raw())
	}
	return len(r.Raw("messages")) + len(r.Raw("tools"))
}

// appendQuestion appends the body of POST /tokenize for r to dst. The values are
// those of the request as they stand, so the engine decodes the same bytes. (vLLM
// entrypoints/openai/protocol.py, TokenizeCompletionRequest, TokenizeChatRequest.)
func appendQuestion(dst []byte, r *prompt.Request) []byte {
	dst = append(dst, `{"model":`...)
	dst = append(dst, r.Raw("model")...)
	if t, ok := r.Prompt(); ok {
		dst = append(dst, `,"prompt":"`...)
		dst = append(dst, t.Raw()...)
		dst = append(dst, '"')
		// Both endpoints add the special tokens unless told otherwise.
		dst = appendMember(dst, r, "add_special_tokens", "true")
		return append(dst, '}')
	}
	generation := "true"
	if r.Set("continue_final_message") {
		generation = "" // engines refuse both; their own default decides
	}
	dst = appendMember(dst, r, "add_generation_prompt", generation)
	for _, key := range []string{"messages", "tools", "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs"} {
		dst = appendMember(dst, r, key, "")
	}
	return append(dst, '}')
}

// appendMember appends a comma and the member of r, or one with the value def
// where r has none, or nothing if def is empty.
func appendMember(dst []byte, r *prompt.Request, key, def string) []byte {
	if !r.Set(key) && def == "" {
		return dst
	}
	dst = append(dst, ',', '"')
	dst = append(dst, key...)
	dst = append(dst, '"', ':')
	if r.Set(key) {
		return append(dst, r.Raw(key)...)
	}
	return append(dst, def...)
}
