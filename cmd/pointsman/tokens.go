package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"pointsman/prompt"
	"pointsman/prompt/local"
	"pointsman/prompt/template"
	"pointsman/prompt/tokens"
)

const tokensText = `tokens reads the body of a request and prints what the router makes of it with a
model's own files: the number of prompt tokens and the hashes of its blocks, by
which caches are matched. With --worker it asks that worker's /tokenize for the
same, prints the first token that differs, and exits 1 when one does. That is what
to look at when the hit rate is zero.`

// errDiffer says that the worker makes other tokens of the request.
var errDiffer = errors.New("the worker's tokens differ from those of the files: the router's hashes match nothing there")

// bodyLimit bounds the body that is read, in bytes.
const bodyLimit = 64 << 20

// tokensQuestion is what the command line asks for.
type tokensQuestion struct {
	path, body, endpoint, engine, worker string
	blockSize                            int
	json, text, ids                      bool
	patience                             time.Duration
}

// tokensReport is the answer, as --json prints it.
type tokensReport struct {
	Model     string      `json:"model"`    // the one that the body names
	Path      string      `json:"path"`     // of the files
	Endpoint  string      `json:"endpoint"` // chat, completions or messages
	Engine    string      `json:"engine"`
	Exact     bool        `json:"exact"`  // these are the engine's tokens; else the router hashes text
	Reason    string      `json:"reason"` // as on /metrics and in /debug/picks
	Note      string      `json:"note,omitempty"`
	Tokens    int         `json:"tokens"`         // estimated when not exact
	Bytes     int         `json:"bytes"`          // of the prompt's text; 0 when it is not known
	Specials  bool        `json:"special_tokens"` // the engine adds some to the text
	BlockSize int         `json:"block_size"`
	Blocks    []string    `json:"blocks"`    // hashes, in hexadecimal
	LeftOver  int         `json:"left_over"` // tokens that fill no block
	Text      string      `json:"text,omitempty"`
	IDs       []uint32    `json:"ids,omitempty"`
	Worker    *comparison `json:"worker,omitempty"`
}

func tokensCommand(ctx context.Context, args []string, out, _ io.Writer) error {
	var q tokensQuestion
	fs := newFlags("tokens", tokensText, out)
	fs.StringVar(&q.path, "model", "", "directory with the model's tokenizer.json and chat template, as --router-tokenizer-path")
	fs.StringVar(&q.body, "body", "-", "file with the request's body; - is the standard input")
	fs.StringVar(&q.endpoint, "endpoint", "", "chat, completions or messages: where the body is sent; empty tells it by the body")
	fs.StringVar(&q.engine, "engine", "vllm", "vllm or sglang: whose way of preparing messages is followed")
	fs.IntVar(&q.blockSize, "block-size", 16, "tokens per block, as the workers register it")
	fs.StringVar(&q.worker, "worker", "", "URL of an engine to compare with")
	fs.DurationVar(&q.patience, "patience", 30*time.Second, "longest wait for the worker")
	fs.BoolVar(&q.json, "json", false, "print one JSON object")
	fs.BoolVar(&q.text, "text", false, "print the rendered prompt, too")
	fs.BoolVar(&q.ids, "ids", false, "print the token ids, too")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	report, err := q.answer(ctx)
	if err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	if q.json {
		err = writeJSON(out, report)
	} else {
		err = writeTokens(out, report)
	}
	if err == nil && report.Worker != nil && !report.Worker.Equal {
		err = errDiffer
	}
	return err
}

// answer does all but printing.
func (q *tokensQuestion) answer(ctx context.Context) (*tokensReport, error) {
	dialect, ok := map[string]template.Dialect{"vllm": template.VLLM, "sglang": template.SGLang}[q.engine]
	switch {
	case q.path == "":
		return nil, errors.New("give --model, the directory of the model's files")
	case !ok:
		return nil, fmt.Errorf("engine %q: give vllm or sglang", q.engine)
	case q.blockSize < 1:
		return nil, fmt.Errorf("block size %d: give at least 1", q.blockSize)
	}
	r, err := q.request()
	if err != nil {
		return nil, err
	}
	files, err := local.Open(q.path, dialect)
	if err != nil {
		return nil, unusable(q.path, err)
	}
	report := &tokensReport{Model: r.Model, Path: q.path, Endpoint: r.Kind.String(), Engine: q.engine, BlockSize: q.blockSize}
	ids, err := report.tokenize(files, r)
	if err != nil {
		return nil, err
	}
	report.hash(ctx, r, ids)
	if q.ids {
		report.IDs = ids
	}
	if !q.text {
		report.Text = ""
	}
	if q.worker != "" {
		if !report.Exact {
			return nil, fmt.Errorf("there is nothing to compare with the worker: the request is approximated (%s: %s)", report.Reason, report.Note)
		}
		if report.Worker, err = q.compare(ctx, files.Tokenizer(), r, ids); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// unusable says what becomes of a model whose files cannot be honoured.
func unusable(path string, err error) error {
	var refused *tokens.UnsupportedError
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("the tokenizer in %s is refused because of its %s; the router asks a worker's /tokenize for this model: %w", path, refused.Feature, err)
	case errors.Is(err, template.ErrUnsupported), errors.Is(err, template.ErrSyntax):
		return fmt.Errorf("the chat template in %s is refused; the router asks a worker's /tokenize for this model: %w", path, err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s holds no tokenizer: give the directory with the tokenizer.json that the engine was given: %w", path, err)
	}
	return fmt.Errorf("the files in %s cannot be used: %w", path, err)
}

// request reads the body.
func (q *tokensQuestion) request() (*prompt.Request, error) {
	in := os.Stdin
	if q.body != "-" {
		f, err := os.Open(q.body)
		if err != nil {
			return nil, err //nolint:wrapcheck // it names the file
		}
		defer f.Close()
		in = f
	}
	raw, err := io.ReadAll(io.LimitReader(in, bodyLimit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the body: %w", err)
	case len(raw) > bodyLimit:
		return nil, fmt.Errorf("the body has more than %d bytes", bodyLimit)
	}
	r := new(prompt.Request)
	if q.endpoint != "" {
		kind, ok := map[string]prompt.Kind{"chat": prompt.Chat, "completions": prompt.Completions, "messages": prompt.Messages}[q.endpoint]
		if !ok {
			return nil, fmt.Errorf("endpoint %q: give chat, completions or messages", q.endpoint)
		}
		return r, scanBody(r, kind, raw)
	}
	if err := scanBody(r, prompt.Completions, raw); err != nil || r.Set("prompt") {
		return r, err
	}
	if r.Set("system") { // OpenAI has it among the messages
		return r, scanBody(r, prompt.Messages, raw)
	}
	return r, scanBody(r, prompt.Chat, raw)
}

func scanBody(r *prompt.Request, kind prompt.Kind, raw []byte) error {
	if err := r.Scan(kind, nil, raw); err != nil {
		return fmt.Errorf("the body is refused as the router refuses it: %w", err)
	}
	return nil
}

// tokenize returns the ids of r, nil when the router would approximate it.
func (t *tokensReport) tokenize(files *local.Files, r *prompt.Request) ([]uint32, error) {
	if ids, ok := r.PromptIDs(nil); ok {
		t.Note = "the request gives the ids itself"
		return ids, nil
	}
	text, specials, err := files.Text(nil, r)
	switch {
	case errors.Is(err, local.ErrDeclined):
		t.Note = declinedBecause(r)
		return nil, nil
	case errors.Is(err, template.ErrTemplate):
		return nil, fmt.Errorf("the chat template fails for this request, so the engine answers 400: %w", err)
	case err != nil:
		return nil, fmt.Errorf("the prompt cannot be rendered: %w", err)
	}
	t.Text, t.Bytes, t.Specials = string(text), len(text), specials
	ids, err := files.Tokenizer().Encode(nil, text, specials)
	if err != nil {
		return nil, fmt.Errorf("the prompt cannot be tokenized, and the engine cannot either: %w", err)
	}
	return ids, nil
}

// declinedBecause says why a request is not rebuilt from the files.
func declinedBecause(r *prompt.Request) string {
	switch {
	case r.Kind == prompt.Messages:
		return "the engine turns Anthropic's form into a chat by rules of its own"
	case r.Multimodal:
		return "images and audio are tokens only in the engine"
	case r.Kind == prompt.Chat && !r.Set("messages"), r.Kind == prompt.Completions && !r.Set("prompt"):
		return "it has no prompt"
	case r.Prompts() > 1:
		return "it has several prompts"
	case r.Kind == prompt.Chat && !r.Set("chat_template") && !r.Set("functions") && !r.Set("truncate_prompt_tokens"):
		return "the model has no chat template"
	}
	return "it sets what changes the prompt in the engine alone: chat_template, functions, truncate_prompt_tokens or prompt_embeds"
}

// given is a tokenizer whose answer is known.
type given []uint32

// Tokenize implements prompt.Tokenizer.
func (g given) Tokenize(_ context.Context, _ *prompt.Request, dst []uint32) ([]uint32, error) {
	if g == nil {
		return dst, local.ErrDeclined
	}
	return append(dst, g...), nil
}

// hash fills in what the router's own preparation of the prompt gives.
func (t *tokensReport) hash(ctx context.Context, r *prompt.Request, ids []uint32) {
	var ready prompt.Prepared
	prompt.NewPreparer(prompt.DefaultConfig(), given(ids)).Prepare(ctx, r, []int{t.BlockSize}, &ready)
	t.Exact, t.Reason, t.Tokens = !ready.Approx && ids != nil, ready.Reason, ready.Tokens
	t.Blocks = []string{}
	for i := range ready.Blocks {
		b := &ready.Blocks[i]
		t.BlockSize = b.Size
		for _, h := range b.Hashes {
			t.Blocks = append(t.Blocks, fmt.Sprintf("%016x", h))
		}
	}
	if t.Exact {
		t.LeftOver = len(ids) - len(t.Blocks)*t.BlockSize
	}
}
