package forward_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	sdkoption "github.com/openai/openai-go/v3/option"
)

// sdk returns the official client, without its own retries: they hide faults.
func sdk(w *world) openai.Client {
	return openai.NewClient(sdkoption.WithBaseURL(w.url+"/v1/"), sdkoption.WithAPIKey("key"), sdkoption.WithMaxRetries(0), sdkoption.WithHTTPClient(w.client))
}

func ask() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    model,
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
	}
}

// collect reads a stream with the official client.
func collect(t *testing.T, w *world) (string, error) {
	t.Helper()
	client := sdk(w)
	stream := client.Chat.Completions.NewStreaming(t.Context(), ask())
	defer stream.Close()
	var text strings.Builder
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text.WriteString(c.Delta.Content)
		}
	}
	return text.String(), stream.Err()
}

func TestTheOfficialClientReadsStreamsAndObjects(t *testing.T) {
	w := newWorld(t, []script{good})
	text, err := collect(t, w)
	if text != "tok0 tok1 " || err != nil {
		t.Errorf("stream %q, error %v", text, err)
	}
	client := sdk(w)
	got, err := client.Chat.Completions.New(t.Context(), ask())
	fatal(t, err)
	if got.Choices[0].Message.Content != "ok" {
		t.Errorf("object %+v", got)
	}
	models, err := client.Models.List(t.Context())
	fatal(t, err)
	if len(models.Data) != 1 || models.Data[0].ID != model {
		t.Errorf("models %+v", models.Data)
	}
	if auth := w.engines[0].got()[0].head.Header.Get("Authorization"); auth != "Bearer key" {
		t.Errorf("the worker saw Authorization %q", auth)
	}
}

func TestTheOfficialClientSeesABrokenStreamAsAnError(t *testing.T) {
	for name, s := range map[string]script{
		"a cut":               rawClose(sseOpen(tok0)),
		"an end without DONE": raw(sse(tok0)),
		"a reset":             rawReset(sseOpen(tok0), nil),
	} {
		w := newWorld(t, []script{s})
		text, err := collect(t, w)
		if err == nil || text != "tok0 " && text != "" {
			t.Errorf("%s: text %q, error %v", name, text, err)
		}
	}
}

func TestTheOfficialClientSeesStatusesAsTypedErrors(t *testing.T) {
	tests := map[string]struct {
		script script
		model  string
		status int
		code   string
	}{
		"an unknown model":       {good, "other", 404, "model_not_found"},
		"a failing fleet":        {raw(jsonReply(500, `{}`)), model, 500, "upstream_error"},
		"a fleet out of reach":   {nil, model, 502, "upstream_connect_failed"},
		"an engine's own answer": {raw(jsonReply(400, `{"error":{"message":"m","type":"t","param":null,"code":"context_length_exceeded"}}`)), model, 400, "context_length_exceeded"},
	}
	for name, tc := range tests {
		w := newWorld(t, []script{tc.script})
		params := ask()
		params.Model = tc.model
		client := sdk(w)
		_, err := client.Chat.Completions.New(t.Context(), params)
		var typed *openai.Error
		if !errors.As(err, &typed) || typed.StatusCode != tc.status || typed.Code != tc.code || typed.Message == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
