package forward

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
)

// A prefix in the log has a hash for each so many tokens, of so many at most: what a
// replay needs (pointsman replay), and no text can be read from it.
const (
	prefixTokens = 512
	maxPrefix    = 2048
)

// notePrefix keeps what the log is to say of the prompt's blocks, if it is to say
// anything.
func (x *exchange) notePrefix(ctx context.Context) {
	log := x.s.deps.Log
	if x.pick.Approx || len(x.pick.Blocks) == 0 || log == nil || !log.Enabled(ctx, slog.LevelDebug) {
		return
	}
	b := &x.pick.Blocks[0]
	if b.Size < 1 {
		return
	}
	step := max(1, prefixTokens/b.Size)
	var text strings.Builder
	for i, n := step-1, 0; i < len(b.Hashes) && n < maxPrefix; i, n = i+step, n+1 {
		if n > 0 {
			text.WriteByte('.')
		}
		text.WriteString(strconv.FormatUint(b.Hashes[i], 16))
	}
	x.prefix = text.String()
}

// sizes are the attributes of a request's line that a replay reads: tokens of the
// prompt as they were counted here, and of the answer by the events that brought them
// or, of an answer that is no stream, as an estimate of its bytes.
func (x *exchange) sizes(attrs []slog.Attr) []slog.Attr {
	if x.report.Tokens < 1 {
		return attrs
	}
	out := x.tokens
	if out == 0 {
		out = int(x.written / bytesPerAnswerToken)
	}
	return append(attrs,
		slog.Int("prompt_tokens", x.report.Tokens), slog.Int("cached_tokens", x.served.HitTokens),
		slog.Int("output_tokens", max(1, out)), slog.String("prefix", x.prefix))
}

// bytesPerAnswerToken is about what a token takes in an answer's JSON.
const bytesPerAnswerToken = 5
