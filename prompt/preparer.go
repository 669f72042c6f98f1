package prompt

import (
	"context"
	"errors"

	"pointsman/kvindex"
)

// Reason labels: what a request's hashes are worth, and why. The set is closed, so it is fit for a metric label.
const (
	ReasonExact       = "exact"        // hashes of the engine's own tokens
	ReasonApprox      = "approx"       // no tokenizer: hashes of the text
	ReasonShortPrompt = "short_prompt" // no full block
	ReasonNoTokens    = "no_tokens"    // the tokenizer failed: hashes of the text
	ReasonTooLong     = "too_long"     // longer than what is tokenized: hashes of the text
	ReasonMultimodal  = "multimodal"   // tokens do not tell the images: hashes of text and image keys
	ReasonOtherPath   = "other_path"   // not an API whose prompts are understood
)

// Tokenizer turns a request into the engine's token ids.
type Tokenizer interface {
	// Tokenize appends the prompt's token ids, with whatever the engine puts
	// around them, to dst. Of several prompts it takes the first. It is exact or
	// fails, and returns soon after ctx is done. Of r it changes nothing but the
	// Source, and keeps nothing. It may be called by any number of goroutines.
	Tokenize(ctx context.Context, r *Request, dst []uint32) ([]uint32, error)
}

// Source is who made a prompt's token ids.
type Source uint8

// The sources. Their order is that in which they are asked.
const (
	SourceNone    Source = iota // nobody: the prompt is approximated
	SourceRequest               // the client sent ids
	SourceFiles                 // the model's own files, in this process
	SourceWorker                // a worker's /tokenize
)

// String returns none, request, files or worker.
func (s Source) String() string {
	switch s {
	case SourceRequest:
		return "request"
	case SourceFiles:
		return "files"
	case SourceWorker:
		return "worker"
	default:
		return "none"
	}
}

// Names says what the name that a request asks for stands for: the model whose
// files make its tokens, and the LoRA adapter on that, "" for none. An unknown
// name stands for itself. It is called for every request and must be fast.
type Names func(name string) (model, adapter string)

// Prepared is a prompt ready for the picker. It is made for reuse: its slices are
// valid until the next Prepare into it. The zero value is ready. Not safe for
// concurrent use.
type Prepared struct {
	Tokens int              // tokens of all prompts of the request, estimated when Approx
	Blocks []kvindex.Blocks // one list per block size, or one list when Approx
	Approx bool             // hashes of the text, in a domain of their own, or of a guessed block size
	Reason string           // one of the Reason labels

	ids    []uint32
	writer blockWriter
}

// Preparer turns requests into block hashes. It may be shared.
type Preparer struct {
	cfg   Config
	tok   Tokenizer
	names Names // nil for none
}

// SetNames makes p resolve aliases and adapters. It must be called before the
// first Prepare.
func (p *Preparer) SetNames(names Names) { p.names = names }

// NewPreparer returns a Preparer. tok may be nil: then only requests that come
// with token ids are exact. cfg must be valid; zero fields take their default.
func NewPreparer(cfg Config, tok Tokenizer) *Preparer {
	def := DefaultConfig()
	if cfg.ApproxBlockTokens == 0 {
		cfg.ApproxBlockTokens = def.ApproxBlockTokens
	}
	if cfg.BytesPerToken == 0 {
		cfg.BytesPerToken = def.BytesPerToken
	}
	return &Preparer{cfg: cfg, tok: tok}
}

// Prepare fills out with the hashes of r's prompt for the given block sizes: those
// of the workers that serve its model. It never fails: a prompt that cannot be
// tokenized is approximated, and Reason says so. It allocates nothing once out
// has grown.
//
// Of a batch of prompts the first is hashed, because only one list can be matched
// with a worker; all of them count in Tokens.
func (p *Preparer) Prepare(ctx context.Context, r *Request, sizes []int, out *Prepared) {
	out.Tokens, out.Approx, out.Reason = 0, false, ReasonOtherPath
	out.Blocks = out.Blocks[:0]
	out.ids = out.ids[:0]
	if r.Kind == Other {
		return
	}
	p.resolve(r)
	ids, reason := r.ids, ReasonExact
	if r.Source = SourceRequest; r.prompt.form != idsPrompt {
		r.Source = SourceNone
		reason = p.tokenize(ctx, r, sizes, out)
		ids = out.ids
	}
	seed := kvindex.Extra(r.LoRA, r.CacheSalt)
	switch {
	case reason != ReasonExact:
		p.approximate(r, seed, out)
	case len(sizes) == 0:
		// No worker has told its block size. A guessed one still finds again what
		// this router has sent.
		out.Approx, reason = true, ReasonApprox
		out.hashTokens(seed, ids, p.cfg.ApproxBlockTokens)
	default:
		for _, size := range sizes {
			out.hashTokens(seed, ids, size)
		}
	}
	out.Tokens += r.prompt.extra + p.estimate(r.prompt.bytes)
	out.Reason = reason
	if reason != ReasonMultimodal && !out.anyBlock() {
		out.Reason = ReasonShortPrompt
	}
}

// resolve finds out what r's model stands for. The blocks of an adapter named as
// the model are the adapter's alone, as with SGLang's lora_path.
func (p *Preparer) resolve(r *Request) {
	if p.names == nil {
		return
	}
	base, adapter := p.names(r.Model)
	r.Base = base
	if r.LoRA == "" {
		r.LoRA = adapter
	}
}

// tokenize asks the tokenizer, if that can give an exact answer.
func (p *Preparer) tokenize(ctx context.Context, r *Request, sizes []int, out *Prepared) string {
	switch {
	case r.Multimodal:
		return ReasonMultimodal
	case p.tok == nil:
		return ReasonApprox
	case r.LoneSurrogates, r.partial:
		return ReasonNoTokens
	case len(sizes) == 0:
		return ReasonApprox // exact tokens would be hashed in guessed blocks: not worth a call
	}
	ids, err := p.tok.Tokenize(ctx, r, out.ids)
	switch {
	case errors.Is(err, ErrTooLong):
		return ReasonTooLong
	case err != nil:
		return ReasonNoTokens // the tokenizer counts its failures by cause
	}
	out.ids = ids
	return ReasonExact
}

// approximate hashes the text of the prompt.
func (p *Preparer) approximate(r *Request, seed kvindex.Hash, out *Prepared) {
	out.Approx = true
	b := out.next(p.cfg.ApproxBlockTokens)
	w := &out.writer
	w.reset(p.cfg.blockBytes(), seed, b.Hashes)
	r.canonical(w)
	b.Hashes = w.finish()
	w.out = nil
	out.Tokens = p.estimate(w.total)
}

func (p *Preparer) estimate(bytes int) int {
	return int(float64(bytes) / p.cfg.BytesPerToken)
}

func (out *Prepared) hashTokens(seed kvindex.Hash, ids []uint32, size int) {
	out.Tokens = len(ids)
	if size < 1 {
		return
	}
	b := out.next(size)
	b.Hashes = kvindex.HashTokens(b.Hashes, seed, ids, size)
}

// next adds a list of blocks and takes over the memory of the one that was there.
func (out *Prepared) next(size int) *kvindex.Blocks {
	n := len(out.Blocks)
	if n < cap(out.Blocks) {
		out.Blocks = out.Blocks[:n+1]
	} else {
		out.Blocks = append(out.Blocks, kvindex.Blocks{})
	}
	b := &out.Blocks[n]
	b.Size, b.Hashes = size, b.Hashes[:0]
	return b
}

func (out *Prepared) anyBlock() bool {
	for i := range out.Blocks {
		if len(out.Blocks[i].Hashes) > 0 {
			return true
		}
	}
	return false
}
