// Package prompt turns a request body into what routing needs: the model, the
// hints, the token ids and the chained hashes of the prompt's blocks.
//
// extproc and forward feed it, once per request: [KindOf] tells the API by the
// path, [Request.Scan] reads the body in one strict pass without building a tree,
// and [Preparer.Prepare] hashes the prompt for the picker. A [Tokenizer] gives
// exact token ids; without one, or when it fails, the prompt's text is cut into
// blocks of bytes, which is good enough to find again what this router has sent.
//
// # What the scan refuses
//
// The engine reads the same bytes after the router has read them, so a body that
// two JSON readers could understand differently is refused: duplicate routing
// keys (engines take the last one, other readers the first), keys are case
// sensitive, text must be valid UTF-8, nesting is limited to [MaxDepth] and
// nothing may follow the object. Everything else that RFC 8259 allows passes.
//
// Two things that Python's json module accepts are treated apart. NaN and
// Infinity are refused. A lone surrogate escape ("\ud800") passes, because
// engines take it, but sets [Request.LoneSurrogate]: such text has no token ids
// that a tokenizer agrees on, so it is never hashed as exact.
//
// # Concurrency
//
// A Request and a Prepared belong to one goroutine at a time and are made for
// reuse. A Preparer holds no mutable state and may be shared.
package prompt
