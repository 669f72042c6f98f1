// Package local turns requests into token ids in this process: the model's chat
// template (prompt/template) and its tokenizer (prompt/tokens), loaded from the
// directory the engine was given.
//
// It is exact or declines, by model or by request; a file that cannot be honoured
// exactly is named once in the log, and its model's requests are declined. What
// it declines is the next source's in the chain of prompt/audit, which asks a
// worker.
//
// # Concurrency
//
// Tokenize may be called from any goroutine. It never loads a file itself:
// [Tokenizer.Run] does, in one goroutine, and also notices files that changed.
// Until a model is loaded its requests are declined.
package local
