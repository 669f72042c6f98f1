// Package remote gets a prompt's token ids from the worker that would serve it, by
// POST /tokenize. It implements [prompt.Tokenizer].
//
// The worker renders its own chat template and runs its own tokenizer, so the ids
// are the engine's by construction. Where an endpoint of the engine is known to
// make something else of the prompt than its /tokenize does, the tokenizer
// declines instead of guessing: see unsupported.
//
// # What it costs
//
// One exchange with a worker of the model, bounded by [Config.Timeout], unless the
// very same request has been tokenized before. A growing conversation is sent
// whole at each turn: /tokenize offers no way to ask for a part of a conversation
// that is exact for every template. Templates may render earlier turns anew when
// one is added (some drop earlier reasoning, some move the list of tools), and
// text tokenized in two pieces can differ at the seam. Tokenizers run at about
// 2 MB/s, so prompts over [Config.MaxPromptBytes] are not asked for at all: the
// answer would come too late.
//
// A model whose workers fail to answer is left alone for [Config.Cooldown].
//
// # Concurrency
//
// Tokenize may be called from any number of goroutines; it starts none but those
// of net/http. At most [Config.Concurrency] exchanges are open at a time, and
// equal requests share one.
package remote
