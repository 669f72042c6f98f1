package audit

import (
	"time"

	"pointsman/prompt"
)

// Form is the kind of a request, as far as engines build the prompt's tokens
// their own way for each. Its text is fit for a metric label.
type Form string

// The forms. A request is of the first that fits.
const (
	FormMultimodal  Form = "multimodal"  // images or audio: never compared
	FormMessages    Form = "messages"    // Anthropic's form: always approximated
	FormIDs         Form = "ids"         // the client's own token ids
	FormLoRA        Form = "lora"        // for an adapter
	FormTools       Form = "tools"       // a chat with tools
	FormChat        Form = "chat"        // any other chat
	FormCompletions Form = "completions" // a text prompt, where special tokens such as BOS are added
)

// Skip is why the numbers of a request cannot be compared.
type Skip string

// The reasons. A request is counted under the first that fits.
const (
	Comparable     Skip = ""
	SkipMultimodal Skip = "multimodal"   // the engine counts what images become
	SkipList       Skip = "list"         // several prompts in one request
	SkipChoices    Skip = "choices"      // n or best_of above 1: engines differ in what they count
	SkipTruncated  Skip = "truncated"    // the engine cuts the prompt
	SkipPair       Skip = "pair"         // prefill and decode by two workers: each counts its leg
	SkipApprox     Skip = "approximated" // no source had exact token ids
	SkipNoUsage    Skip = "no_usage"     // the engine reported none
)

// Report is the numbers of one request. [Of] fills the upper part.
type Report struct {
	Model  string // that its name stands for
	Form   Form
	Source prompt.Source // who made the token ids
	Skip   Skip
	Tokens int       // of the prompt, by our count; an estimate when approximated
	Began  time.Time // before the tokens were made

	Worker  string // ID of the worker that answered
	Counted int    // usage.prompt_tokens
	Hit     int    // tokens that the pick believed the worker to hold
	Cached  int    // usage.prompt_tokens_details.cached_tokens; -1 when not reported
	Output  int    // usage.completion_tokens; 0 when not reported
}

// Of returns the report of a request that has just been prepared, without what
// the engine has yet to say. It keeps nothing that points into r's body.
func Of(r *prompt.Request, p *prompt.Prepared, began time.Time) Report {
	return Report{
		Model: r.Base, Form: formOf(r), Source: r.Source, Skip: skipOf(r, p), Tokens: p.Tokens,
		Began: began, Cached: -1,
	}
}

func formOf(r *prompt.Request) Form {
	switch {
	case r.Multimodal:
		return FormMultimodal
	case r.Kind == prompt.Messages:
		return FormMessages
	case r.Source == prompt.SourceRequest:
		return FormIDs
	case r.LoRA != "":
		return FormLoRA
	case r.Kind == prompt.Completions:
		return FormCompletions
	case r.Tools:
		return FormTools
	}
	return FormChat
}

func skipOf(r *prompt.Request, p *prompt.Prepared) Skip {
	switch {
	case r.Multimodal:
		return SkipMultimodal
	case r.Prompts() > 1:
		return SkipList
	case r.N > 1 || r.BestOf > 1:
		return SkipChoices
	case r.Set("truncate_prompt_tokens"):
		return SkipTruncated
	case p.Approx || r.Source == prompt.SourceNone:
		return SkipApprox
	}
	return Comparable
}
