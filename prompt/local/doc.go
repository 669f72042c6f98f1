// Package local turns requests into token ids in this process: the model's chat
// template (prompt/template) and its tokenizer (prompt/tokens), loaded from the
// directory the engine was given.
//
// It is exact or declines. What it declines, by model or by request, goes to the
// fallback, which asks a worker; a file that cannot be honoured exactly is named
// once in the log, and its model is left to the fallback.
//
// # Concurrency
//
// Tokenize may be called from any goroutine. It never loads a file itself:
// [Tokenizer.Run] does, in one goroutine, and also notices files that changed.
// Until a model is loaded its requests go to the fallback.
package local
