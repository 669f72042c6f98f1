package template

import (
	"errors"
	"fmt"
	"strconv"
)

// What went wrong, for errors.Is. Every error of this package wraps one of them.
var (
	// ErrSyntax: the source is not a template.
	ErrSyntax = errors.New("template: syntax error")
	// ErrUnsupported: the template uses what this package does not build.
	ErrUnsupported = errors.New("template: not supported")
	// ErrTemplate: the engine's own rendering fails too, it would answer 400.
	ErrTemplate = errors.New("template: rendering fails")
	// ErrLimit: a bound of [Limits] was reached.
	ErrLimit = errors.New("template: limit reached")
	// ErrInput: the request's JSON is not usable, or holds text that is not Unicode.
	ErrInput = errors.New("template: bad input")
	// ErrNoTemplate: the model's directory holds no chat template.
	ErrNoTemplate = errors.New("template: no chat template")
)

// Error is a failed parse or rendering. It wraps one of the sentinels above.
type Error struct {
	Template string // the name given to [Parse]
	Line     int    // 1-based line of the statement; 0 when there is none
	Class    string // Python's exception class, such as "UndefinedError"
	Message  string // the exception's text; may quote the template, and the request through raise_exception

	kind error
}

// Error names the template, the line, the class and the text.
func (e *Error) Error() string {
	where := e.Template
	if e.Line > 0 {
		where += ":" + strconv.Itoa(e.Line)
	}
	return where + ": " + e.Class + ": " + e.Message
}

// Unwrap returns the sentinel.
func (e *Error) Unwrap() error { return e.kind }

// Classes of failures that have no Python counterpart.
const (
	classLimit       = "Limit"
	classUnsupported = "Unsupported"
	classInput       = "Input"
	classInternal    = "Internal"
)

// fail ends the rendering with a Python exception.
func (r *run) fail(class, format string, args ...any) value {
	msg := format
	if len(args) > 0 {
		msg = fmt.Sprintf(format, args...)
	}
	panic(&Error{Template: r.name(), Line: r.line, Class: class, Message: msg, kind: ErrTemplate})
}

// typeError is fail with Python's most frequent class.
func (r *run) typeError(format string, args ...any) value {
	return r.fail("TypeError", format, args...)
}

// unsupported ends the rendering because what it needs is not built.
func (r *run) unsupported(what string) value {
	panic(&Error{Template: r.name(), Line: r.line, Class: classUnsupported, Message: what + " is not supported", kind: ErrUnsupported})
}

func (r *run) limit(what string) {
	panic(&Error{Template: r.name(), Line: r.line, Class: classLimit, Message: what, kind: ErrLimit})
}

func (r *run) name() string {
	if r.t == nil {
		return ""
	}
	return r.t.name
}

// inputError reports a request that cannot be rendered.
func inputError(msg string) *Error {
	return &Error{Template: "request", Class: classInput, Message: msg, kind: ErrInput}
}
