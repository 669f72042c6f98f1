package prompt

// key is a member of the body's object that the scan knows.
type key uint8

// The known keys. Each may be there once, its raw value is kept, and Raw returns
// it. Keys that no one here reads yet change what the engine makes of the prompt,
// so tokenizers must see them.
const (
	keyUnknown key = iota
	keyModel
	keyStream
	keyMessages
	keyPrompt
	keySystem
	keyTools
	keyN
	keyBestOf
	keyMaxTokens
	keyMaxCompletionTokens
	keyCacheSalt
	keyLoRAPath
	keyPromptCacheKey
	keyPromptCacheRetention
	keyImages
	keyAudio
	keyStreamOptions
	keyUser
	keyToolChoice
	keyFunctions
	keyReasoningEffort
	keyChatTemplate
	keyChatTemplateKwargs
	keyAddGenerationPrompt
	keyContinueFinalMessage
	keyAddSpecialTokens
	keyDocuments
	keyTruncatePromptTokens
	keyPromptEmbeds
	keyCount
)

// TransferField reports whether a member of the body's object of that name is how
// routers tell engines of each other: where to fetch a KV cache from, and which
// rank to run on. A client's would make an engine connect to an address of the
// client's choice (failover.md §5, S3). The names are vLLM's, SGLang's and
// TensorRT-LLM's.
func TransferField(name []byte) bool {
	switch string(name) {
	case "kv_transfer_params", "disaggregated_params", "data_parallel_rank", "routed_dp_rank":
		return true
	}
	for _, prefix := range [...]string{"bootstrap_", "do_remote_", "remote_"} {
		if len(name) > len(prefix) && string(name[:len(prefix)]) == prefix {
			return true
		}
	}
	return false
}

// rootKey finds the known key of a name.
func rootKey(name []byte) key {
	switch string(name) {
	case "model":
		return keyModel
	case "stream":
		return keyStream
	case "messages":
		return keyMessages
	case "prompt":
		return keyPrompt
	case "system":
		return keySystem
	case "tools":
		return keyTools
	case "n":
		return keyN
	case "best_of":
		return keyBestOf
	case "max_tokens":
		return keyMaxTokens
	case "max_completion_tokens":
		return keyMaxCompletionTokens
	case "cache_salt":
		return keyCacheSalt
	case "lora_path":
		return keyLoRAPath
	case "prompt_cache_key":
		return keyPromptCacheKey
	case "prompt_cache_retention":
		return keyPromptCacheRetention
	case "images":
		return keyImages
	case "audio":
		return keyAudio
	case "stream_options":
		return keyStreamOptions
	case "user":
		return keyUser
	}
	return templateKey(name)
}

// templateKey finds the keys that change how the engine renders the prompt.
func templateKey(name []byte) key {
	switch string(name) {
	case "tool_choice":
		return keyToolChoice
	case "functions":
		return keyFunctions
	case "reasoning_effort":
		return keyReasoningEffort
	case "chat_template":
		return keyChatTemplate
	case "chat_template_kwargs":
		return keyChatTemplateKwargs
	case "add_generation_prompt":
		return keyAddGenerationPrompt
	case "continue_final_message":
		return keyContinueFinalMessage
	case "add_special_tokens":
		return keyAddSpecialTokens
	case "documents":
		return keyDocuments
	case "truncate_prompt_tokens":
		return keyTruncatePromptTokens
	case "prompt_embeds":
		return keyPromptEmbeds
	}
	return keyUnknown
}

// maxKey is no shorter than any name that is looked for.
const maxKey = 32

// name returns the decoded key, for comparing. A key that is too long to be a
// known one comes back undecoded: its backslash matches nothing.
func (t Text) name(buf *[6 * maxKey]byte) []byte {
	if !t.escaped || len(t.raw) > len(buf) {
		return t.raw
	}
	return t.AppendTo(buf[:0])
}

// String returns the key's name in the body.
func (k key) String() string {
	switch k {
	case keyModel:
		return "model"
	case keyStream:
		return "stream"
	case keyMessages:
		return "messages"
	case keyPrompt:
		return "prompt"
	case keySystem:
		return "system"
	case keyTools:
		return "tools"
	case keyN:
		return "n"
	case keyBestOf:
		return "best_of"
	case keyMaxTokens:
		return "max_tokens"
	case keyMaxCompletionTokens:
		return "max_completion_tokens"
	case keyCacheSalt:
		return "cache_salt"
	case keyLoRAPath:
		return "lora_path"
	case keyPromptCacheKey:
		return "prompt_cache_key"
	case keyPromptCacheRetention:
		return "prompt_cache_retention"
	case keyImages:
		return "images"
	case keyAudio:
		return "audio"
	case keyStreamOptions:
		return "stream_options"
	case keyUser:
		return "user"
	case keyToolChoice:
		return "tool_choice"
	case keyFunctions:
		return "functions"
	case keyReasoningEffort:
		return "reasoning_effort"
	case keyChatTemplate:
		return "chat_template"
	case keyChatTemplateKwargs:
		return "chat_template_kwargs"
	case keyAddGenerationPrompt:
		return "add_generation_prompt"
	case keyContinueFinalMessage:
		return "continue_final_message"
	case keyAddSpecialTokens:
		return "add_special_tokens"
	case keyDocuments:
		return "documents"
	case keyTruncatePromptTokens:
		return "truncate_prompt_tokens"
	case keyPromptEmbeds:
		return "prompt_embeds"
	}
	return ""
}
