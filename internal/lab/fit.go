package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Fit is engine constants as a worker's numbers show them. What the numbers do not
// show is as it was.
type Fit struct {
	Engine      Engine
	BlockTokens int // 0 unknown
	CacheBlocks int // 0 unknown
	Found       []string
	Kept        []string
}

// FitFrom reads a worker's metrics (a URL) or a forwarder's log (a file).
func FitFrom(ctx context.Context, source string, base Engine) (*Fit, error) {
	if strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://") {
		return fitURL(ctx, source, base)
	}
	f, err := os.Open(source) //nolint:gosec // whoever runs this names it
	if err != nil {
		return nil, fmt.Errorf("fit: %w", err)
	}
	defer f.Close()
	return FitLog(source, f, base)
}

func fitURL(ctx context.Context, url string, base Engine) (*Fit, error) {
	if !strings.Contains(url[len("https://"):], "/") {
		url += "/metrics"
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("fit: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fit: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fit: %s answers %s", url, resp.Status)
	}
	return FitMetrics(io.LimitReader(resp.Body, 16<<20), base)
}

// FitMetrics reads what vLLM exports. Its counters are sums over the engine's life:
// they show mean rates, so a fit wants an engine under the load that is to be
// replayed.
func FitMetrics(in io.Reader, base Engine) (*Fit, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(in)
	if err != nil {
		return nil, fmt.Errorf("fit: no metrics: %w", err)
	}
	f := &Fit{Engine: base}
	f.cacheConfig(families["vllm:cache_config_info"])
	f.prefill(families)
	f.decode(families)
	if len(f.Found) == 0 {
		return nil, errors.New("fit: none of vLLM's metrics that tell about its speed or its cache: want vllm:cache_config_info, vllm:request_prefill_time_seconds or vllm:time_per_output_token_seconds")
	}
	return f, f.Engine.Validate()
}

func (f *Fit) found(format string, args ...any) {
	f.Found = append(f.Found, fmt.Sprintf(format, args...))
}

func (f *Fit) kept(format string, args ...any) { f.Kept = append(f.Kept, fmt.Sprintf(format, args...)) }

func (f *Fit) cacheConfig(mf *dto.MetricFamily) {
	for _, m := range mf.GetMetric() {
		for _, l := range m.GetLabel() {
			n := 0
			if _, err := fmt.Sscan(l.GetValue(), &n); err != nil || n < 1 {
				continue
			}
			switch l.GetName() {
			case "block_size":
				f.BlockTokens = n
			case "num_gpu_blocks":
				f.CacheBlocks = n
			}
		}
	}
	if f.CacheBlocks > 0 && f.BlockTokens > 0 {
		f.found("cache of %d blocks of %d tokens", f.CacheBlocks, f.BlockTokens)
		return
	}
	f.kept("size of the cache: vllm:cache_config_info does not tell")
}

// prefill takes the mean prompt tokens computed in a millisecond of prefill.
func (f *Fit) prefill(families map[string]*dto.MetricFamily) {
	seconds, n := histogram(families["vllm:request_prefill_time_seconds"])
	tokens := counter(families["vllm:prompt_tokens_total"])
	if queries := counter(families["vllm:prefix_cache_queries_total"]); queries > 0 { // vLLM counts cached tokens among the prompt's
		tokens = min(tokens, queries-counter(families["vllm:prefix_cache_hits_total"]))
	}
	if seconds <= 0 || n < 20 || tokens <= 0 {
		f.kept("prefill rate: it wants vllm:request_prefill_time_seconds of 20 requests or more")
		return
	}
	f.Engine.Rate = tokens / (seconds * 1e3)
	f.found("prefill rate %.3g tokens/ms, of %.0f prompts (lower than the engine's best: prompts share steps)", f.Engine.Rate, n)
}

// decode takes what is left of the mean time per token, less what its neighbours
// cost, for a step's fixed cost.
func (f *Fit) decode(families map[string]*dto.MetricFamily) {
	var seconds, n float64
	for _, name := range []string{"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"} {
		if seconds, n = histogram(families[name]); n > 0 {
			break
		}
	}
	if n < 100 || seconds <= 0 {
		f.kept("cost of a step: it wants vllm:inter_token_latency_seconds of 100 tokens or more")
		return
	}
	f.Engine.Step = time.Duration(seconds / n * float64(time.Second))
	f.found("step of %v, the mean time between tokens of %.0f (higher than an idle engine's: prompts and neighbours are in it)", f.Engine.Step.Round(time.Microsecond), n)
}

func counter(mf *dto.MetricFamily) (sum float64) {
	for _, m := range mf.GetMetric() {
		sum += m.GetCounter().GetValue() + m.GetUntyped().GetValue()
	}
	return sum
}

func histogram(mf *dto.MetricFamily) (sum, n float64) {
	for _, m := range mf.GetMetric() {
		sum += m.GetHistogram().GetSampleSum()
		n += float64(m.GetHistogram().GetSampleCount())
	}
	return sum, n
}

// Write prints the fit as flags, and what it comes from.
func (f *Fit) Write(out io.Writer) error {
	e := f.Engine
	lines := []string{fmt.Sprintf("--engine-rate %.4g --engine-step %v --engine-per-decoder %v --engine-per-context %v --engine-doubling %.0f --engine-chunk %d --engine-seqs %d",
		e.Rate, e.Step, e.PerDecoder, e.PerContext, e.Doubling, e.ChunkTokens, e.MaxSeqs)}
	if f.CacheBlocks > 0 && f.BlockTokens > 0 {
		lines[0] += fmt.Sprintf(" --block-tokens %d --cache-blocks %d", f.BlockTokens, f.CacheBlocks)
	}
	for _, s := range f.Found {
		lines = append(lines, "# found: "+s)
	}
	for _, s := range f.Kept {
		lines = append(lines, "# kept as it was: "+s)
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err //nolint:wrapcheck // the writer's own
}
