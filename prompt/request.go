package prompt

import (
	"net/http"
	"strings"
)

// Retention is how long the client wants its prompt cached.
type Retention uint8

// The levels, weakest first; of several hints in a body the strongest counts.
// (Infera infera/router/cache_control.py.)
const (
	RetentionUnset Retention = iota // no hint
	RetentionNone                   // asked not to be kept
	RetentionShort                  // minutes
	RetentionLong                   // an hour or more
)

// String returns unset, none, short or long.
func (t Retention) String() string {
	switch t {
	case RetentionNone:
		return "none"
	case RetentionShort:
		return "short"
	case RetentionLong:
		return "long"
	default:
		return "unset"
	}
}

// Request is what a scan of the body found. Its slices and the views it hands out
// point into the body: they are valid until the body is reused or Scan is called
// again. The zero value is ready for Scan.
type Request struct {
	Kind       Kind
	Model      string // as sent, decoded
	Base       string // the model that Model stands for: Model, until Prepare finds it an alias or adapter
	Stream     bool
	N          int    // choices asked for; 1 when absent
	BestOf     int    // sequences the engine computes to choose from; 0 when absent
	MaxTokens  int    // max_completion_tokens, else max_tokens; 0 when absent
	LoRA       string // SGLang's lora_path, or the adapter that Prepare finds Model to be, as vLLM has it
	CacheSalt  string // vLLM and SGLang: prompts with different salts share no blocks
	Retention  Retention
	Multimodal bool     // has content other than text
	Images     []uint64 // XXH3-64 of each trimmed image reference, at most MaxImages
	Tools      bool     // has a non-empty list of tools
	Transfer   bool     // has a [TransferField], which only routers may set
	Source     Source   // who made the token ids of the prompt; SourceNone until one has

	// LoneSurrogates is set when some string holds half of a surrogate pair. No
	// tokenizer takes such text, so its hashes are only approximations.
	LoneSurrogates bool

	body    []byte
	raw     [keyCount][]byte
	prompt  promptValue
	ids     []uint32 // of an idsPrompt
	system  message
	msgs    []message
	parts   []Part
	scratch []byte
	partial bool // the body has more messages or parts than are recorded

	last  names
	hints hints
	seen  uint64 // bit k: known key k has been met
	max   [2]int // max_tokens, max_completion_tokens
}

// MaxImages bounds Request.Images: the affinity tables hold no more per worker.
// (Infera kv_event_aware.py keeps 256 image keys per worker.)
const MaxImages = 256

// maxRecords bounds the views kept of one body's messages and of its parts. An
// element can be three bytes long and a record is over a hundred, so a hostile
// body could otherwise take forty times its size in memory.
const maxRecords = 1 << 14

// Reset empties r: nothing of the last body is left in it, and its views are
// dropped, but it keeps its memory for the next scan.
func (r *Request) Reset() {
	if cap(r.msgs) > maxRecords/8 {
		r.msgs = nil
	}
	if cap(r.parts) > maxRecords/8 {
		r.parts = nil
	}
	if cap(r.scratch) > 1<<20 {
		r.scratch = nil
	}
	if cap(r.ids) > 1<<18 {
		r.ids = nil
	}
	clear(r.msgs)
	clear(r.parts)
	ids, msgs, parts, images, scratch := r.ids[:0], r.msgs[:0], r.parts[:0], r.Images[:0], r.scratch[:0]
	last := r.last.or(r.Model, r.LoRA, r.CacheSalt)
	*r = Request{} // in place: a literal with these in it would be made elsewhere and copied
	r.ids, r.msgs, r.parts, r.Images, r.scratch, r.last = ids, msgs, parts, images, scratch, last
}

// names are the strings of an earlier request. The next one likely has the same,
// and can then do without a copy.
type names struct{ model, lora, salt string }

// maxKeptName bounds the names that an idle Request keeps, in bytes. No worker
// can register a longer one.
const maxKeptName = 512

// or returns n with the strings that are neither empty nor huge in their places.
func (n names) or(model, lora, salt string) names {
	return names{kept(model, n.model), kept(lora, n.lora), kept(salt, n.salt)}
}

func kept(name, former string) string {
	if name == "" || len(name) > maxKeptName {
		return former
	}
	return name
}

// Scan reads body in one pass. It resets r and keeps views of body. header may be
// nil; its keys must be in canonical form.
//
// The error is a [*BadRequest] and r is then not usable. For kind [Other] there is
// none: a body that is not understood, JSON or not, leaves r empty.
func (r *Request) Scan(kind Kind, header http.Header, body []byte) error {
	r.start(kind, body)
	enc := contentEncoding(header)
	if kind == Other {
		if enc == "" {
			r.scanOther()
		}
		return nil
	}
	if enc != "" {
		return unsupportedEncoding(enc)
	}
	s := scanner{b: body}
	if !r.root(&s) {
		return s.err
	}
	r.finish(&s)
	if r.Model == "" {
		return noModel()
	}
	return nil
}

// ScanStrictly is [Request.Scan] for a body of an API that is not understood but
// known to take one JSON object: what two readers could understand differently is
// refused, as it is for the others.
func (r *Request) ScanStrictly(header http.Header, body []byte) error {
	r.start(Other, body)
	if enc := contentEncoding(header); enc != "" {
		return unsupportedEncoding(enc)
	}
	s := scanner{b: body}
	if !r.root(&s) {
		return s.err
	}
	r.finish(&s)
	return nil
}

func (r *Request) start(kind Kind, body []byte) {
	r.Reset()
	r.Kind, r.N, r.body = kind, 1, body
}

// scanOther takes what can be had from the body of an API that is not understood.
func (r *Request) scanOther() {
	s := scanner{b: r.body}
	if !r.root(&s) {
		r.start(Other, r.body)
		return
	}
	r.finish(&s)
}

// finish settles what depends on several keys.
func (r *Request) finish(s *scanner) {
	r.Base = r.Model
	r.LoneSurrogates = s.lone
	r.MaxTokens = r.max[0]
	if r.max[1] != 0 {
		r.MaxTokens = r.max[1]
	}
	r.Retention = r.hints.retention()
}

// contentEncoding returns the first coding that is not identity, or "".
func contentEncoding(header http.Header) string {
	for _, line := range header["Content-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return coding
			}
		}
	}
	return ""
}
