package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

func writeJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v) //nolint:wrapcheck // our own types: only writing can fail
}

// writeTokens prints a report for people.
func writeTokens(out io.Writer, t *tokensReport) error {
	var b strings.Builder
	fmt.Fprintf(&b, "request   %s, model %s, as %s prepares it\n", t.Endpoint, t.Model, t.Engine)
	fmt.Fprintf(&b, "files     %s\n", t.Path)
	switch {
	case !t.Exact:
		fmt.Fprintf(&b, "prompt    about %d tokens, reason %s: the router hashes the text", t.Tokens, t.Reason)
	case t.Bytes > 0:
		fmt.Fprintf(&b, "prompt    %d tokens of %d bytes, reason %s", t.Tokens, t.Bytes, t.Reason)
		if t.Specials {
			b.WriteString(", with the model's special tokens")
		}
	default:
		fmt.Fprintf(&b, "prompt    %d tokens, reason %s", t.Tokens, t.Reason)
	}
	b.WriteByte('\n')
	if t.Note != "" {
		fmt.Fprintf(&b, "          %s\n", t.Note)
	}
	fmt.Fprintf(&b, "blocks    %d of %d tokens", len(t.Blocks), t.BlockSize)
	if t.Exact {
		fmt.Fprintf(&b, ", %d tokens left over", t.LeftOver)
	}
	b.WriteByte('\n')
	for i, h := range t.Blocks {
		fmt.Fprintf(&b, "%8d  %s\n", i, h)
	}
	if len(t.IDs) > 0 {
		fmt.Fprintf(&b, "ids       %s\n", strings.Trim(fmt.Sprint(t.IDs), "[]"))
	}
	if t.Text != "" {
		fmt.Fprintf(&b, "text      %q\n", t.Text)
	}
	if t.Worker != nil {
		writeComparison(&b, t.Worker)
	}
	_, err := io.WriteString(out, b.String())
	return err //nolint:wrapcheck // the caller's writer
}

func writeComparison(b *strings.Builder, c *comparison) {
	if c.Equal {
		fmt.Fprintf(b, "worker    %s makes the same %d tokens\n", c.URL, c.Tokens)
		return
	}
	fmt.Fprintf(b, "worker    %s makes %d tokens; number %d, from 0, is the first that differs\n", c.URL, c.Tokens, c.At)
	fmt.Fprintf(b, "  before  %q\n", c.Before)
	fmt.Fprintf(b, "  ours    %s\n", listPieces(c.Ours))
	fmt.Fprintf(b, "  theirs  %s\n", listPieces(c.Theirs))
	if c.Hint != "" {
		fmt.Fprintf(b, "  %s\n", c.Hint)
	}
}

// listPieces lists tokens as id and text by our files.
func listPieces(list []piece) string {
	if len(list) == 0 {
		return "(the end)"
	}
	parts := make([]string, len(list))
	for i, p := range list {
		parts[i] = fmt.Sprintf("%d %q", p.ID, p.Text)
	}
	return strings.Join(parts, ", ")
}
