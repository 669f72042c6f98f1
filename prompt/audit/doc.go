// Package audit compares what this router believes of prompts with what engines
// report of them: our token count with usage.prompt_tokens, the hit that a pick
// foresaw with prompt_tokens_details.cached_tokens, and the tokenizer canary that
// a worker registers with what our files make of the same text.
//
// A token count that differs means that every block hash from there on differs:
// hits of that prompt are found by luck only. So a source of token ids whose
// counts keep differing is not asked any more, for that model and that form of
// request: [Chain] goes on to the next source, from the model's own files to a
// worker's /tokenize, and from there to none, when prompts are approximated and
// only this router's own picks are found again. After a while a few prompts are
// given to it again; when the engines agree with those, it is back.
//
// The way of a number: a door calls [Of] with each pick, adds what the engine
// reported ([Tail] finds it in a response), and hands the report to
// [Auditor.Observe]. What cannot be compared is counted as such and proves
// nothing.
//
// It is a room of its own, beside prompt's tokenizers and not in them, because
// both doors feed it and because it must judge every source alike.
//
// # Concurrency
//
// An Auditor is safe for concurrent use; its one mutex is held for map look-ups
// only. A Report is a value, and a Tail belongs to one goroutine.
package audit
