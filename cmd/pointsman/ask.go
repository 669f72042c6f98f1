package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// answerLimit bounds what an endpoint's answer may be.
const answerLimit = 64 << 20

// asker asks a running program's HTTP endpoints.
type asker struct {
	client *http.Client
	token  string // bearer token of --admin-token, "" for none
}

func newAsker(token string) asker {
	return asker{client: &http.Client{Timeout: 10 * time.Second}, token: token}
}

// get returns the answer to GET base+path. A status other than 200 is an error
// that quotes the answer.
func (a asker) get(ctx context.Context, base, path string) ([]byte, error) {
	url := strings.TrimSuffix(base, "/") + path
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	if a.token != "" {
		req.Header.Set("Authorization", "Bearer "+a.token)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err //nolint:wrapcheck // a *url.Error names the method and the URL
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s: %s", url, resp.Status, strings.TrimSpace(string(body[:min(len(body), 500)])))
	}
	return body, nil
}

// getJSON decodes the answer to GET base+path into v.
func (a asker) getJSON(ctx context.Context, base, path string, v any) error {
	body, err := a.get(ctx, base, path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("GET %s%s: the answer is not what is expected: %w", base, path, err)
	}
	return nil
}
