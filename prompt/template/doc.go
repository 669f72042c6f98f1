// Package template renders the chat templates of Hugging Face models in this
// process, byte for byte as the engine does.
//
// A chat template is a Jinja program that turns messages and tools into the prompt.
// One byte that differs changes every later block hash, so this is an interpreter
// of Python's semantics (None is not undefined, code points, repr, integer
// division, the immutable sandbox) in the environment of transformers'
// apply_chat_template: trim_blocks, lstrip_blocks, loop controls, the generation
// tag, raise_exception, strftime_now and its own tojson. Where the engine would
// answer 400, [Template.Render] returns an [Error] of the same class.
//
// # The way of a template
//
// [Load] finds a model's templates and special tokens; [Parse] lexes, parses and
// resolves names as Jinja's compiler does; what is not built is refused there, by
// name and line, with [ErrUnsupported]. [FromChat] cuts a chat body into an
// [Input]; [Template.Render] decodes it, normalizes content parts as the engine
// does and walks the tree.
//
// # Bounds
//
// Steps, memory, output and depth are charged before they are spent, see [Limits].
// A template's source, nesting and chains are bounded at parse. Nothing a template
// does stops the process: failures are panics of one type that Render catches, and
// all recursion is counted.
//
// # Concurrency
//
// A [Template] and a [Set] are immutable and may be used by any number of
// goroutines. Each Render borrows its own state from a pool.
package template
