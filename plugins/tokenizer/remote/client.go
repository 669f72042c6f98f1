package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"pointsman/fleet"
	"pointsman/prompt"
)

// newClient returns a client of its own: the pool of connections to workers that
// requests use must not fill up with these, nor the other way round.
func newClient(cfg Config) *http.Client {
	dialer := &net.Dialer{Timeout: cfg.Timeout, KeepAlive: 30 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         dialer.DialContext,
			MaxIdleConnsPerHost: cfg.Concurrency,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		// A worker answers itself or not at all.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask sends the question to one worker and appends the answer's ids to dst.
func (t *Tokenizer) ask(ctx context.Context, w *fleet.Worker, question []byte, dst []uint32) ([]uint32, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/tokenize", bytes.NewReader(question))
	if err != nil {
		return dst, fmt.Errorf("tokenize at worker %s: %w", w.ID, err)
	}
	req.Header["Content-Type"] = []string{"application/json"}
	resp, err := t.client.Do(req)
	if err != nil {
		return dst, fmt.Errorf("tokenize at worker %s: %w", w.ID, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		// A short body read to its end lets the connection be used again.
		_, _ = io.CopyN(io.Discard, resp.Body, 4<<10)
		return dst, &StatusError{Worker: w.ID, Code: resp.StatusCode}
	}
	// A token takes a byte of text at least and 12 of the answer at most; the
	// template adds some.
	limit := int64(12*len(question) + 1<<20)
	answer, err := readAll(io.LimitReader(resp.Body, limit), resp.ContentLength, limit)
	if err != nil {
		return dst, fmt.Errorf("tokenize at worker %s: %w", w.ID, err)
	}
	ids, err := prompt.AppendTokenIDs(dst, answer)
	if err != nil {
		return dst, fmt.Errorf("tokenize at worker %s: %w", w.ID, err)
	}
	return ids, nil
}

// readAll is io.ReadAll into one buffer where the length is known.
func readAll(r io.Reader, length, limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if length > 0 && length <= limit {
		buf.Grow(int(length) + bytes.MinRead)
	}
	_, err := buf.ReadFrom(r)
	return buf.Bytes(), err
}
