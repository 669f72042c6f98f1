package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"pointsman/prompt/template"
)

// renderRounds is how often the conversation is rendered for one figure.
const renderRounds = 200

// renderMicros measures the CPU time to render 100 KB of 50 messages with the
// model's own chat template, in microseconds: the median of five rounds.
func renderMicros(dir string) (float64, error) {
	set, err := template.Load(dir)
	if err != nil {
		return 0, fmt.Errorf("chat template: %w", err)
	}
	messages, err := json.Marshal(longChat(50, 2050))
	if err != nil {
		return 0, err
	}
	in := template.Input{Messages: messages, AddGenerationPrompt: true, Dialect: template.VLLM, Now: time.Now()}
	tpl, err := set.For(&in)
	if err != nil {
		return 0, fmt.Errorf("chat template: %w", err)
	}
	var rounds []float64
	var out []byte
	for range 5 {
		before, err := CPUTime()
		if err != nil {
			return 0, err
		}
		for range renderRounds {
			if out, err = tpl.Render(out[:0], &in, template.Limits{}); err != nil {
				return 0, fmt.Errorf("render: %w", err)
			}
		}
		after, err := CPUTime()
		if err != nil {
			return 0, err
		}
		rounds = append(rounds, float64((after-before).Nanoseconds())/1000/renderRounds)
	}
	return Round(Median(rounds), 1), nil
}

const letters = "abcdefghijklmnopqrstuvwxyz"

// longChat is a conversation of n messages of about size bytes, with the quotes
// and line ends of real text.
func longChat(n, size int) []map[string]string {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same text each time
	out := make([]map[string]string, n)
	for i := range out {
		var b strings.Builder
		for b.Len() < size {
			for range 2 + r.IntN(9) {
				b.WriteByte(letters[r.IntN(len(letters))])
			}
			b.WriteString([]string{" ", " ", " ", ", ", "\n", " \"x\" "}[r.IntN(6)])
		}
		role := "user"
		if i%2 == 1 {
			role = "assistant"
		}
		out[i] = map[string]string{"role": role, "content": b.String()}
	}
	return out
}
