package simengine

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	openairesponses "github.com/openai/openai-go/v3/responses"

	"pointsman/fleet"
	"pointsman/internal/testkit"
)

// The official client reads both forms, and both say the same.
func TestResponsesAPI(t *testing.T) {
	e := start(t, fast())
	client := openai.NewClient(option.WithBaseURL(e.URL()+"/v1"), option.WithAPIKey("k"), option.WithMaxRetries(0))
	params := openairesponses.ResponseNewParams{
		Model: "sim-model", Input: openairesponses.ResponseNewParamsInputUnion{OfString: openai.String("hello")}, MaxOutputTokens: openai.Int(20),
	}
	whole, err := client.Responses.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	stream := client.Responses.NewStreaming(t.Context(), params)
	var text, last string
	sequence := int64(0)
	for stream.Next() {
		ev := stream.Current()
		if ev.SequenceNumber != sequence {
			t.Errorf("event %d has number %d", sequence, ev.SequenceNumber)
		}
		sequence++
		if last = ev.Type; last == "response.output_text.delta" {
			text += ev.Delta
		}
	}
	if err := stream.Err(); err != nil || text == "" || text != whole.OutputText() || !strings.HasPrefix(last, "response.") {
		t.Errorf("%q by stream, %q whole; %v, the last event %q", text, whole.OutputText(), err, last)
	}
	if whole.Usage.OutputTokens == 0 || whole.Usage.InputTokens == 0 {
		t.Errorf("usage %+v", whole.Usage)
	}
	listed := post(t, e.URL()+"/v1/responses", `{"instructions":"be brief","input":[{"role":"user","content":[{"type":"input_text","text":"hello"}]}],"max_output_tokens":1,"ignore_eos":true}`)
	if !strings.Contains(listed, `"status":"incomplete"`) {
		t.Errorf("a list as input: %s", listed)
	}
	if resp, body := do(t, http.MethodPost, e.URL()+"/v1/responses", `{"input":[]}`); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("no input: %d %s", resp.StatusCode, body)
	}
}

func TestAbortRequestEndsWhatItNamesAndNoOther(t *testing.T) {
	cfg := fast()
	cfg.Time.Scale, cfg.Engine = 1, fleet.SGLang
	e := start(t, cfg)
	long := func(rid, fault string) (func(), <-chan struct{}) {
		return hanging(t, e, `{"rid":"`+rid+`","messages":[{"role":"user","content":"hi"}],"max_tokens":10000,"ignore_eos":true,"stream":true}`, fault)
	}
	_, one := long("aaaa-1", "ok")
	_, two := long("aaaa-2", "hang_head")
	leave, other := long("bbbb-1", "ok")
	testkit.Until(t, "three requests", func() bool { return len(e.Receipts()) == 3 && e.Receipts()[2].Rid != "" })
	if resp, body := do(t, http.MethodPost, e.URL()+"/abort_request", `{}`); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("an abort of nothing: %d %s", resp.StatusCode, body)
	}
	if resp, body := do(t, http.MethodPost, e.URL()+"/abort_request", `{"rid":"aaaa"}`); resp.StatusCode != http.StatusOK {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	<-one
	<-two
	select {
	case <-other:
		t.Error("a request of another name has ended")
	case <-time.After(50 * time.Millisecond):
	}
	for _, r := range e.Receipts() {
		if mine := strings.HasPrefix(r.Rid, "aaaa"); mine != (r.Outcome == OutcomeAborted) || mine != (r.AbortRequestAt != nil) {
			t.Errorf("%s: %+v", r.Rid, r)
		}
	}
	leave()
	<-other
	idle(t, e)

	plain := start(t, fast())
	if resp, _ := do(t, http.MethodPost, plain.URL()+"/abort_request", `{"rid":"x"}`); resp.StatusCode != http.StatusNotFound {
		t.Errorf("vLLM has no such path, and answers %d", resp.StatusCode)
	}
}
