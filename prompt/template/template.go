package template

import (
	"strings"
	"time"
	"unicode/utf8"
)

// Template is a compiled chat template. It is immutable; any number of goroutines
// may render it.
type Template struct {
	name    string
	source  string
	body    []stmt
	proc    *procInfo
	init    *scopeInit
	names   []string // render variables it reads
	globals []value  // by name, where it is a global function
	special []Special

	vllm, sglang ContentFormat
	pool         *pool
}

// Special is a special token of the tokenizer that templates see as a variable,
// such as bos_token.
type Special struct {
	Name string // bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token
	Text string
}

// Parse compiles a template. name is for error texts. A source that is no template
// gives [ErrSyntax]; one that uses what is not built gives [ErrUnsupported], with
// the name of what and the line.
func Parse(name, source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, &Error{Template: name, Class: classUnsupported, Message: "a source of more than 256 KiB is not supported", kind: ErrUnsupported}
	}
	if !utf8.ValidString(source) {
		return nil, &Error{Template: name, Class: "UnicodeDecodeError", Message: "the source is not UTF-8", kind: ErrSyntax}
	}
	toks, lexErr := lex(name, source)
	if lexErr != nil {
		return nil, lexErr
	}
	defer func() {
		if x := recover(); x != nil {
			e, ok := x.(*Error)
			if !ok {
				panic(x)
			}
			t, err = nil, e
		}
	}()
	p := &parser{name: name, toks: toks}
	t = &Template{name: name, source: source, body: p.template(), pool: &pool{}}
	rs := &resolver{name: name, names: map[string]int32{}, blocks: map[string]bool{}}
	t.proc, t.init = rs.template(t.body)
	t.names = rs.list
	t.globals = make([]value, len(t.names))
	for i, n := range t.names {
		if n == "lipsum" {
			rs.fail(0, "the function 'lipsum'")
		}
		t.globals[i], _ = globalFunc(n)
	}
	t.detectFormats()
	return t, nil
}

// Format is the content format that an engine's own detection gives the template.
func (t *Template) Format(d Dialect) ContentFormat {
	switch d {
	case VLLM:
		return t.vllm
	case SGLang:
		return t.sglang
	default:
		return FormatOpenAI // parts are passed as they are
	}
}

// WithSpecial returns the template with special tokens as variables. t is unchanged.
func (t *Template) WithSpecial(tokens []Special) *Template {
	c := *t
	c.special = tokens[:min(len(tokens), maxSpecialNames):min(len(tokens), maxSpecialNames)]
	return &c
}

// Input is what one request gives to a template. Its byte slices are JSON and are
// only read. An empty one is absent, as is null.
type Input struct {
	Messages  []byte // array; required
	Tools     []byte // array; absent is None
	Documents []byte // array; absent is None
	Kwargs    []byte // object: chat_template_kwargs, extra variables

	ToolChoice      []byte // tool_choice; SGLang hides tools by it
	ReasoningEffort []byte // a string; engines pass it as a variable

	AddGenerationPrompt  bool
	ContinueFinalMessage bool // end where the last message ends; not with AddGenerationPrompt

	// Dialect is the engine whose way of preparing messages and tools is followed.
	Dialect Dialect
	// ContentFormat overrides the engine's detection; FormatAuto is the detected one.
	ContentFormat ContentFormat
	// Now is the local time of strftime_now; the zero value is 0001-01-01.
	Now time.Time
}

// Render appends the prompt to dst. On error it returns dst as it was, and an
// [Error]: of [ErrTemplate] when the engine would refuse the request too.
func (t *Template) Render(dst []byte, in *Input, lim Limits) (out []byte, err error) {
	r := t.pool.take()
	size := len(in.Messages) + len(in.Tools) + len(in.Documents) + len(in.Kwargs)
	lim = lim.withDefaults(size)
	r.t, r.out, r.base, r.now = t, dst, len(dst), in.Now
	r.steps, r.mem, r.maxOut, r.maxDepth = lim.Steps, lim.Memory, lim.Output, lim.Depth
	if lim.Steps <= 0 {
		r.steps = defaultSteps
	}
	r.fixedSteps = lim.Steps > 0
	defer func() {
		if x := recover(); x != nil {
			out, err = dst, t.failure(x, r.line)
			return // r may be in any state: it is not kept
		}
		t.pool.release(r)
	}()
	r.input(in)
	return r.out, nil
}

// failure turns a panic into an error. One that is not an Error is a defect of this
// package; the request is served without tokens all the same.
func (t *Template) failure(x any, line int) error {
	if e, ok := x.(*Error); ok {
		if e.Template == "" {
			e.Template = t.name
		}
		e.Message = strings.Clone(e.Message) // it may be the request's text, which does not outlive the call
		return e
	}
	return &Error{Template: t.name, Line: line, Class: classInternal, Message: "a defect of the interpreter", kind: ErrUnsupported}
}

// input decodes the request, prepares it as the engine does, and runs the template.
func (r *run) input(in *Input) {
	vars := r.variables(in)
	r.ctx = append(r.ctx[:0], r.t.globals...)
	for i, n := range r.t.names {
		if v, ok := vars.str(n); ok {
			r.ctx[i] = v
		}
	}
	r.push(r.t.proc, nil)
	r.open(r.t.init)
	r.body(r.t.body)
	if in.ContinueFinalMessage {
		r.cutAfterFinal()
	}
}
