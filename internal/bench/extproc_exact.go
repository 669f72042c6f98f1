package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// exactModel is the model of the npm packages whose tokenizer and chat template
// the rows with exact tokens use.
const exactModel = "qwen3"

// exactBytes bounds the bodies of a round with exact tokens, of which each request
// has its own.
const exactBytes = 64 << 20

// measureExact adds the rows of an EPP that tokenizes: conversations of which the
// first 80 % have been seen and the rest never, so that neither what remembers
// stretches of text nor what remembers whole requests can answer all of it.
func measureExact(ctx context.Context, cfg extProcConfig, reference *process, dir string, result *extProcResult, log io.Writer) error {
	const workers = 8
	_, model, err := prepareTokenizer(ctx, cfg.exact, exactModel)
	if err != nil {
		return err
	}
	epp, err := startEPP(ctx, cfg.epp, nil, dir, workers, model, log)
	if err != nil {
		return err
	}
	defer epp.stop()
	if err = epp.loadTokenizer(ctx); err != nil {
		return err
	}
	most := cfg.most
	for _, size := range []int{smallPrompt, largePrompt} {
		cfg.most = min(most, exactBytes/size)
		source, err := newExactBodies(size)
		if err != nil {
			return err
		}
		before, err := epp.metric(ctx, exactResults)
		if err != nil {
			return err
		}
		mine, theirs, err := measurePair(ctx, cfg, epp, reference, source.take, 0)
		if err != nil {
			return err
		}
		after, err := epp.metric(ctx, exactResults)
		if err != nil {
			return err
		}
		if least := (cfg.rounds + 3) * cfg.least; int(after-before) < least {
			return fmt.Errorf("the EPP tokenized %.0f prompts exactly, want at least %d: it did not do what is measured", after-before, least)
		}
		result.add(extProcRow{Workers: workers, PromptBytes: size, Tokens: exactTokens, C: extProcStreams}, mine, theirs, log)
	}
	return nil
}

// exactResults counts the prompts that were tokenized in the EPP.
const exactResults = `pointsman_tokenizer_local_total{result="exact"}`

// loadTokenizer makes the EPP load the model, which it does when it is asked for it.
func (s *process) loadTokenizer(ctx context.Context) error {
	client, err := dialExtProc(s.addr, 0)
	if err != nil {
		return err
	}
	defer client.close()
	client.bodies = extProcBodies(smallPrompt)[:1]
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for range 300 {
		if _, _, err := client.run(ctx, 1); err != nil {
			return err
		}
		if loaded, err := s.metric(ctx, `pointsman_tokenizer_loaded{model="`+extProcModel+`"}`); err == nil && loaded == 1 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.New("the EPP has not loaded the tokenizer: its log says why")
}

// exactBodies makes conversations in the words, and their frequency, of this
// checkout's pages.
type exactBodies struct {
	words    []string
	prefixes [][]map[string]string // messages that are known
	size     int
	made     atomic.Uint64
}

func newExactBodies(size int) (*exactBodies, error) {
	text, err := checkoutText(".md")
	if err != nil {
		return nil, err
	}
	b := &exactBodies{words: strings.Fields(string(text)), size: size}
	shared := size * sharedPercent / 100
	for i := range bodyGroups {
		rng := rand.New(rand.NewPCG(uint64(i), 1)) //nolint:gosec // the same text in every run
		messages := []map[string]string{{"role": "system", "content": b.prose(rng, min(shared, 2000))}}
		for left := shared - 2000; left > 0; left -= 2000 {
			role := []string{"assistant", "user"}[len(messages)%2]
			messages = append(messages, map[string]string{"role": role, "content": b.prose(rng, min(left, 2000))})
		}
		b.prefixes = append(b.prefixes, messages)
	}
	return b, nil
}

// prose is n bytes of text, about.
func (b *exactBodies) prose(rng *rand.Rand, n int) string {
	var text strings.Builder
	for text.Len() < n {
		text.WriteString(b.words[rng.IntN(len(b.words))])
		if rng.IntN(12) == 0 {
			text.WriteString(".\n")
		} else {
			text.WriteByte(' ')
		}
	}
	return text.String()
}

// take is a bodySource: each body ends in text that no body had before.
func (b *exactBodies) take(n int) []extProcBody {
	bodies := make([]extProcBody, n)
	for i := range bodies {
		number := b.made.Add(1)
		rng := rand.New(rand.NewPCG(number, 2)) //nolint:gosec // the same text in every run
		known := b.prefixes[number%bodyGroups]
		last := map[string]string{"role": "user", "content": b.prose(rng, b.size*(100-sharedPercent)/100)}
		raw, err := json.Marshal(map[string]any{
			"model": extProcModel, "stream": true, "max_tokens": 16, "messages": append(slices.Clip(known), last),
		})
		if err != nil { // strings always marshal
			panic(err)
		}
		bodies[i] = newExtProcBody(i, raw)
	}
	return bodies
}
