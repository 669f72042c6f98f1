package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"pointsman/internal/stack"
)

// openAI returns the official client for s. Bodies that it sends are appended to
// sent.
func openAI(s *stack.Stack, sent *[][]byte) openai.Client {
	return openai.NewClient(
		option.WithBaseURL(s.URL+"/v1"), option.WithAPIKey("sk-test"), option.WithMaxRetries(0),
		option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
			if r.Body != nil {
				raw, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				*sent = append(*sent, raw)
				r.Body = io.NopCloser(bytes.NewReader(raw))
			}
			return next(r)
		}),
	)
}

func TestTheOfficialClientGetsAWholeAnswer(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			var sent [][]byte
			client := openAI(s, &sent)
			got, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
				Model:     stack.DefaultModel,
				Messages:  []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("Be brief."), openai.UserMessage("Say something. " + words(1, 40))},
				MaxTokens: openai.Int(12),
			}, option.WithHeader("X-Request-Id", id(t, "0")))
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Choices) != 1 || got.Choices[0].Message.Content == "" || got.Usage.CompletionTokens != 12 || got.Usage.PromptTokens < 40 {
				t.Errorf("answer %s", got.RawJSON())
			}
			rc := theReceipt(t, s, id(t, "0"))
			if rc.Outcome != "complete" || rc.TokensSent != 12 || !rc.Authorization || rc.BodySHA256 != sum(sent[0]) || rc.PromptTokens != int(got.Usage.PromptTokens) {
				t.Errorf("receipt %+v of a body with sum %s", rc, sum(sent[0]))
			}
		})
	}
}

func TestTheOfficialClientStreams(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			var sent [][]byte
			client := openAI(s, &sent)
			stream := client.Chat.Completions.NewStreaming(t.Context(), openai.ChatCompletionNewParams{
				Model:         stack.DefaultModel,
				Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say something. " + words(2, 40))},
				MaxTokens:     openai.Int(20),
				StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
			}, option.WithHeader("X-Request-Id", id(t, "0")))
			var whole openai.ChatCompletionAccumulator
			chunks := 0
			for stream.Next() {
				chunks++
				if !whole.AddChunk(stream.Current()) {
					t.Fatalf("chunk %d does not fit: %s", chunks, stream.Current().RawJSON())
				}
			}
			if err := stream.Err(); err != nil {
				t.Fatal(err)
			}
			if whole.Choices[0].Message.Content == "" || whole.Choices[0].FinishReason != "length" || whole.Usage.CompletionTokens != 20 || chunks < 20 {
				t.Errorf("%d chunks made %+v", chunks, whole.ChatCompletion)
			}
			rc := theReceipt(t, s, id(t, "0"))
			if rc.Outcome != "complete" || rc.TokensSent != 20 || rc.BodySHA256 != sum(sent[0]) || !rc.Stream {
				t.Errorf("receipt %+v", rc)
			}
		})
	}
}

func TestModelsAndWorkersAreListed(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			var sent [][]byte
			client := openAI(s, &sent)
			models, err := client.Models.List(t.Context())
			if err != nil || len(models.Data) != 1 || models.Data[0].ID != stack.DefaultModel {
				t.Errorf("models %+v, %v", models, err)
			}
			a := send(t, http.DefaultClient, http.MethodGet, s.URL+"/v1/workers", http.NoBody, nil)
			var list struct {
				Workers []struct {
					ID string `json:"worker_id"`
				} `json:"workers"`
			}
			if err := json.Unmarshal(a.body, &list); err != nil || len(list.Workers) != len(s.Workers) {
				t.Errorf("workers: %d, %v: %s", a.status, err, a.body)
			}
		})
	}
}

func TestATwoMegabytePromptArrivesWhole(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			body := chatBody(t, words(3, 2<<20/5), nil)
			if len(body) < 2<<20 {
				t.Fatalf("the body has only %d bytes", len(body))
			}
			a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": id(t, "0")})
			c := parse(t, a)
			rc := theReceipt(t, s, id(t, "0"))
			if rc.BodySHA256 != sum(body) || rc.BytesIn != int64(len(body)) || rc.Outcome != "complete" {
				t.Errorf("receipt %+v of %d bytes with sum %s", rc, len(body), sum(body))
			}
			if c.Usage.Prompt < 400_000 {
				t.Errorf("%d prompt tokens", c.Usage.Prompt)
			}
		})
	}
}

// overHTTP2 returns a client that speaks HTTP/2 from the first byte.
func overHTTP2(t *testing.T) *http.Client {
	t.Helper()
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestAnHTTP2ClientIsServed(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			client := overHTTP2(t)
			for i, extra := range []map[string]any{nil, {"stream": true}} {
				body := chatBody(t, "hello "+words(4+i, 5000), extra)
				requestID := id(t, fmt.Sprint(i))
				a := send(t, client, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": requestID})
				if a.status != http.StatusOK || a.proto != "HTTP/2.0" {
					t.Fatalf("%s %d: %.300s", a.proto, a.status, a.body)
				}
				if extra != nil && strings.Count(string(a.body), "data: [DONE]") != 1 {
					t.Errorf("stream ends in %q", a.body[max(0, len(a.body)-100):])
				}
				if rc := theReceipt(t, s, requestID); rc.BodySHA256 != sum(body) || rc.Outcome != "complete" {
					t.Errorf("receipt %+v", rc)
				}
			}
		})
	}
}

// withTrailers sends body chunked, with trailers behind it.
func withTrailers(t *testing.T, client *http.Client, url, requestID string, body []byte) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", requestID)
	req.Trailer = http.Header{"X-Checksum": {sum(body)}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, raw, resp.Proto}
}

// TestTrailersEndTheBody runs on ORIGINAL_DST only: with the retry policy that
// override_host needs, Envoy duplicates such a body (envoyproxy/envoy 45470).
func TestTrailersEndTheBody(t *testing.T) {
	t.Parallel()
	s := sharedFleet(t, stack.OriginalDst)
	for name, client := range map[string]*http.Client{"h1": {}, "h2": overHTTP2(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body := chatBody(t, "trailers "+name, nil)
			parse(t, withTrailers(t, client, s.URL+"/v1/chat/completions", id(t, "0"), body))
			if rc := theReceipt(t, s, id(t, "0")); rc.BodySHA256 != sum(body) || rc.Outcome != "complete" {
				t.Errorf("receipt %+v, want one body with sum %s", rc, sum(body))
			}
		})
	}
}

func TestOtherPathsArePassedThrough(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			for path, body := range map[string]string{
				"/v1/embeddings":  `{"model":"sim-model","input":"hello"}`,
				"/v1/completions": `{"model":"sim-model","prompt":"hello","max_tokens":4}`,
				"/v1/messages":    `{"model":"sim-model","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`,
			} {
				requestID := id(t, strings.ReplaceAll(path[4:], "/", "-"))
				a := send(t, http.DefaultClient, http.MethodPost, s.URL+path, strings.NewReader(body), map[string]string{"X-Request-Id": requestID, "Content-Type": "application/json"})
				if a.status != http.StatusOK {
					t.Errorf("%s: %d: %.300s", path, a.status, a.body)
					continue
				}
				if rc := theReceipt(t, s, requestID); rc.Path != path || rc.BodySHA256 != sum([]byte(body)) {
					t.Errorf("%s: receipt %+v", path, rc)
				}
			}
		})
	}
}
