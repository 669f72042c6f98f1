package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// minFit is how many requests a fit of a log wants.
const minFit = 20

// FitLog reads the forwarder's log: the fastest tenth of the first tokens, by prompt
// token, tell the prefill rate, and the fastest tenth of the answers, by token, a
// step's cost. What a busy engine adds to the others is left out so.
func FitLog(name string, in io.Reader, base Engine) (*Fit, error) {
	var perMS, perToken []float64
	lines := bufio.NewReaderSize(in, 1<<16)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		fields, err := logFields(string(line))
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		if fields["msg"] != accessMessage || fields["outcome"] != "ok" {
			continue
		}
		rate, token, err := speeds(fields)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, n, err)
		}
		if rate > 0 {
			perMS = append(perMS, rate)
		}
		if token > 0 {
			perToken = append(perToken, token)
		}
	}
	f := &Fit{Engine: base}
	if len(perMS) >= minFit {
		slices.Sort(perMS)
		f.Engine.Rate = quantile(perMS, .9)
		f.found("prefill rate %.3g tokens/ms: a tenth of %d first tokens came as fast", f.Engine.Rate, len(perMS))
	} else {
		f.kept("prefill rate: it wants %d requests with prompt_tokens and ttft, there are %d", minFit, len(perMS))
	}
	if len(perToken) >= minFit {
		slices.Sort(perToken)
		f.Engine.Step = time.Duration(quantile(perToken, .1))
		f.found("step of %v: a tenth of %d answers came as fast, token by token", f.Engine.Step, len(perToken))
	} else {
		f.kept("cost of a step: it wants %d answers of 8 tokens or more, there are %d", minFit, len(perToken))
	}
	if len(f.Found) == 0 {
		return nil, fmt.Errorf("%s: fewer than %d finished requests: log more (the forwarder's level debug)", name, minFit)
	}
	return f, f.Engine.Validate()
}

// speeds returns how many uncached prompt tokens a millisecond took until the first
// token, and how many nanoseconds each later token; 0 for what the line does not tell.
func speeds(fields map[string]string) (perMS, perToken float64, err error) {
	num := func(name string) int {
		n, wrong := strconv.Atoi(fields[name])
		if wrong != nil {
			return 0
		}
		return n
	}
	if fields["ttft"] == "" {
		return 0, 0, nil
	}
	first, err := logDuration(fields["ttft"])
	if err != nil {
		return 0, 0, fmt.Errorf("ttft %.40q: %w", fields["ttft"], err)
	}
	took, err := logDuration(fields["duration"])
	if err != nil {
		return 0, 0, fmt.Errorf("duration %.40q: %w", fields["duration"], err)
	}
	if miss := num("prompt_tokens") - num("cached_tokens"); miss > 0 && first > 0 {
		perMS = float64(miss) / (float64(first) / float64(time.Millisecond))
	}
	if out := num("output_tokens"); out >= 8 && took > first {
		perToken = float64(took-first) / float64(out-1)
	}
	return perMS, perToken, nil
}
