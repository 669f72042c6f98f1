package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"pointsman/fleet"
	"pointsman/plugins/tokenizer/remote"
	"pointsman/prompt"
	"pointsman/prompt/tokens"
)

// comparison is what a worker's /tokenize says beside the files.
type comparison struct {
	URL    string  `json:"url"`
	Tokens int     `json:"tokens"`
	Equal  bool    `json:"equal"`
	At     int     `json:"first_difference"` // index of the token; -1 for none
	Before string  `json:"before,omitempty"` // the text before it, its end
	Ours   []piece `json:"ours,omitempty"`   // from there on, a few
	Theirs []piece `json:"theirs,omitempty"`
	Hint   string  `json:"hint,omitempty"`
}

// piece is a token with its text by our files.
type piece struct {
	ID   uint32 `json:"id"`
	Text string `json:"text"`
}

// How much around a difference is shown.
const (
	tokensBefore = 12
	tokensAfter  = 4
)

// compare asks the worker for the ids of r.
func (q *tokensQuestion) compare(ctx context.Context, tok *tokens.Tokenizer, r *prompt.Request, ours []uint32) (*comparison, error) {
	url := strings.TrimSuffix(q.worker, "/")
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	theirs, err := askWorker(ctx, q, url, r)
	if err != nil {
		return nil, err
	}
	c := &comparison{URL: url, Tokens: len(theirs), At: firstDifference(ours, theirs)}
	if c.Equal = c.At < 0; c.Equal {
		return c, nil
	}
	for _, p := range pieces(tok, ours[max(0, c.At-tokensBefore):c.At]) {
		c.Before += p.Text
	}
	c.Ours = pieces(tok, ours[c.At:min(len(ours), c.At+tokensAfter)])
	c.Theirs = pieces(tok, theirs[c.At:min(len(theirs), c.At+tokensAfter)])
	c.Hint = hint(ours, theirs, c.At)
	return c, nil
}

// askWorker asks as the router would, but for longer and without a limit.
func askWorker(ctx context.Context, q *tokensQuestion, url string, r *prompt.Request) ([]uint32, error) {
	var store fleet.Store
	fleet.NewFeed(&store).Replace([]*fleet.Worker{{ID: url, URL: url, Model: r.Model, DPRank: -1}})
	cfg := remote.DefaultConfig()
	cfg.Timeout, cfg.MaxPromptBytes, cfg.CacheBytes = q.patience, bodyLimit, 0
	worker := remote.New(cfg, &store, slog.New(slog.DiscardHandler))
	defer worker.Close()
	ids, err := worker.Tokenize(ctx, r, nil)
	var status *remote.StatusError
	switch {
	case errors.Is(err, remote.ErrUnsupported):
		return nil, fmt.Errorf("a worker cannot be asked for this request: %w", err)
	case errors.As(err, &status):
		return nil, fmt.Errorf("%w: does it serve the model %q, and its own chat template take this request?", err, r.Model)
	case err != nil:
		return nil, err //nolint:wrapcheck // it names the worker
	}
	return ids, nil
}

// firstDifference returns the index of the first token that differs, -1 for none.
func firstDifference(a, b []uint32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) == len(b) {
		return -1
	}
	return min(len(a), len(b))
}

func pieces(tok *tokens.Tokenizer, ids []uint32) []piece {
	out := make([]piece, len(ids))
	for i, id := range ids {
		out[i] = piece{ID: id, Text: string(tok.AppendText(nil, id))}
	}
	return out
}

// hint names the usual cause of a difference, "" when it is none of them.
func hint(ours, theirs []uint32, at int) string {
	switch {
	case at == 0 && len(theirs) > 0 && slices.Equal(ours, theirs[1:]):
		return "the worker puts a token in front that the files do not: is a tokenizer_config.json missing, or older?"
	case at == 0 && len(ours) > 0 && slices.Equal(theirs, ours[1:]):
		return "the files put a token in front that the worker does not"
	case at == len(ours):
		return "the worker goes on where the files end: another generation prompt, or a token at the end"
	case at == len(theirs):
		return "the worker ends sooner: another generation prompt, or no token at the end"
	case at == 0:
		return "not even the first token is the same: is it the same model?"
	}
	return ""
}
