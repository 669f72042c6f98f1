package extproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"pointsman/admission"
	"pointsman/picker"
	"pointsman/prompt"
)

func TestErrorsBecomeStatusCodesInOnePlace(t *testing.T) {
	cases := []struct {
		err       error
		status    int
		code      string
		anthropic string
		retry     bool
	}{
		{&prompt.BadRequest{Status: 400, Code: prompt.CodeDuplicateKey, Param: "model", Message: "twice"}, 400, "duplicate_key", "invalid_request_error", false},
		{fmt.Errorf("wrapped: %w", &prompt.BadRequest{Status: 415, Code: prompt.CodeEncoding, Message: "gzip"}), 415, "unsupported_encoding", "invalid_request_error", false},
		{prompt.ErrTooLarge, 413, "request_too_large", "request_too_large", false},
		{tooLarge(5), 413, "request_too_large", "request_too_large", false},
		{fmt.Errorf("model x: %w", picker.ErrNoModel), 404, "model_not_found", "not_found_error", false},
		{fmt.Errorf("model x: %w", picker.ErrNoWorker), 503, "no_worker", "overloaded_error", true},
		{fmt.Errorf("pick: %w", &picker.PairError{Model: "x", Prefill: 1}), 503, "pd_pool_unavailable", "overloaded_error", true},
		{fmt.Errorf("model x: %w", picker.ErrNoEndpoint), 503, "no_endpoint", "overloaded_error", true},
		{tooMany(), 429, "admission_capacity", "rate_limit_error", true},
		{fmt.Errorf("queue: %w", context.DeadlineExceeded), 504, "pick_timeout", "timeout_error", true},
		{errors.New("a secret of ours"), 500, "internal_error", "api_error", false},
	}
	for _, c := range cases {
		t.Run(c.err.Error(), func(t *testing.T) {
			r := refuse(c.err)
			if r.status != c.status || r.code != c.code || (r.retryAfter > 0) != c.retry {
				t.Errorf("got %+v", r)
			}
			a, err := r.answer(false)
			if err != nil {
				t.Fatal(err)
			}
			checkOpenAIError(t, decode(t, a).GetImmediateResponse(), c.status, c.code, c.retry)
			var body struct {
				Type  string
				Error struct{ Type, Message string }
			}
			if err := json.Unmarshal(r.body(true), &body); err != nil {
				t.Fatal(err)
			}
			if body.Type != "error" || body.Error.Type != c.anthropic || body.Error.Message == "" {
				t.Errorf("Anthropic body %s", r.body(true))
			}
		})
	}
}

func TestARefusalTellsNoSecretsAndNamesTheKeyAtFault(t *testing.T) {
	if r := refuse(errors.New("etcd password is x")); r.message != internalError().message {
		t.Errorf("an internal error's text reaches the client: %s", r.message)
	}
	var body openAIError
	bad := refuse(&prompt.BadRequest{Status: 400, Code: "wrong_type", Param: "n", Message: `"n" must be a number, not "<script>` + "\xff" + `"`})
	if err := json.Unmarshal(bad.body(false), &body); err != nil {
		t.Fatal(err)
	}
	if body.Error.Param == nil || *body.Error.Param != "n" {
		t.Errorf("param %v", body.Error.Param)
	}
	if err := json.Unmarshal(internalError().body(false), &body); err != nil {
		t.Fatal(err)
	}
	if body.Error.Param != nil {
		t.Error("param is not null where no key is at fault")
	}
}

// Each status that can be refused with has its own counter.
func TestEveryRefusalStatusIsCounted(t *testing.T) {
	m := newMetrics(admission.NewBudget(0), func() int { return 0 })
	for _, err := range []error{
		&prompt.BadRequest{Status: http.StatusBadRequest}, &prompt.BadRequest{Status: http.StatusUnsupportedMediaType},
		picker.ErrNoModel, picker.ErrNoWorker, picker.ErrNoEndpoint, prompt.ErrTooLarge, tooMany(), context.DeadlineExceeded, internalError(),
	} {
		if _, ok := m.byCode[refuse(err).status]; !ok {
			t.Errorf("%v (status %d) has no counter", err, refuse(err).status)
		}
	}
}
