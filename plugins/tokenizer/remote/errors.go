package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"pointsman/prompt"
)

// Why there are no token ids. All of them mean: approximate.
var (
	ErrUnsupported = errors.New("this request renders otherwise than /tokenize can tell")
	ErrTooLong     = prompt.ErrTooLong
	ErrNoWorker    = errors.New("no active worker of the model")
	ErrSkipped     = errors.New("the model's workers failed to tokenize and are left alone for a while")
	ErrBusy        = errors.New("too many tokenizations are open")
)

// StatusError is an answer of a worker other than 200.
type StatusError struct {
	Worker string // worker ID
	Code   int    // HTTP status
}

// Error names the worker and the status.
func (e *StatusError) Error() string {
	return fmt.Sprintf("worker %s answered /tokenize with status %d", e.Worker, e.Code)
}

// refusal reports whether the worker finds fault with the request.
func (e *StatusError) refusal() bool {
	switch e.Code {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// reason is the metric label of an error.
func reason(err error) string {
	var status *StatusError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrUnsupported):
		return "unsupported"
	case errors.Is(err, ErrTooLong):
		return "too_long"
	case errors.Is(err, ErrNoWorker):
		return "no_worker"
	case errors.Is(err, ErrSkipped):
		return "skipped"
	case errors.Is(err, ErrBusy):
		return "busy"
	case errors.Is(err, prompt.ErrAnswer):
		return "answer"
	case errors.As(err, &status):
		return "status"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	return "connection"
}

// reasons lists what reason returns, so that every series exists from the start.
func reasons() []string {
	return []string{
		"ok", "unsupported", "too_long", "no_worker", "skipped", "busy", "answer", "status", "canceled", "timeout", "connection",
	}
}
