package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
)

// apiError is OpenAI's error object.
type apiError struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    any     `json:"code"`
	} `json:"error"`
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBadRequestsAreRefusedBeforeAnyEngine(t *testing.T) {
	good := string(chatBody(t, "hi", nil))
	deep := `{"model":"sim-model","messages":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`
	tests := []struct {
		name   string
		body   string
		header map[string]string
		status int
		says   string // in the message
	}{
		{"malformed JSON", `{"model": "sim-model", "messages": [`, nil, 400, ""},
		{"no JSON at all", `hello`, nil, 400, ""},
		{"an array", `[1,2]`, nil, 400, ""},
		{"an empty body", ``, nil, 400, ""},
		{"text behind the object", good + `x`, nil, 400, ""},
		{"two models", `{"model":"sim-model",` + good[1:], nil, 400, "model"},
		{"64 levels deep", deep, nil, 400, ""},
		{"no model", `{"messages":[{"role":"user","content":"hi"}]}`, nil, 400, "model"},
		{"a model that is a number", `{"model":7,"messages":[]}`, nil, 400, "model"},
		{"messages that are a number", `{"model":"sim-model","messages":7}`, nil, 400, "messages"},
		{"an unknown model", strings.Replace(good, "sim-model", "no-such-model", 1), nil, 404, "no-such-model"},
		{"gzip", string(gzipped(t, []byte(good))), map[string]string{"Content-Encoding": "gzip"}, 415, "ncod"},
		{"more than the limit", `{"model":"sim-model","messages":[{"role":"user","content":"` + strings.Repeat("a ", 17<<20) + `"}]}`, nil, 413, ""},
	}
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					t.Parallel()
					header := map[string]string{"Content-Type": "application/json", "X-Request-Id": id(t, "0")}
					maps.Copy(header, tt.header)
					a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", strings.NewReader(tt.body), header)
					var refusal apiError
					err := json.Unmarshal(a.body, &refusal)
					if a.status != tt.status || err != nil || refusal.Error.Message == "" || refusal.Error.Type != "invalid_request_error" {
						t.Fatalf("status %d, want %d; body %.300s (%v)", a.status, tt.status, a.body, err)
					}
					if !strings.Contains(refusal.Error.Message, tt.says) {
						t.Errorf("message %q does not say %q", refusal.Error.Message, tt.says)
					}
					if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
						t.Errorf("content type %q", ct)
					}
					if list := receipts(t, s, id(t, "0")); len(list) != 0 {
						t.Errorf("an engine was asked: %+v", list)
					}
				})
			}
		})
	}
}

// TestAnEnginesOwnRefusalComesThrough sends what only the engine can judge.
func TestAnEnginesOwnRefusalComesThrough(t *testing.T) {
	t.Parallel()
	for _, b := range bootstraps() {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			s := sharedFleet(t, b)
			body := chatBody(t, "hi", map[string]any{"max_tokens": 2_000_000})
			a := send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": id(t, "0")})
			rc := theReceipt(t, s, id(t, "0"))
			if a.status != http.StatusBadRequest || rc.Outcome != "rejected" || !strings.Contains(string(a.body), rc.Error) {
				t.Errorf("status %d, %.300s; receipt %+v", a.status, a.body, rc)
			}
		})
	}
}
