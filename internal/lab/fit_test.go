package lab_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pointsman/internal/lab"
)

func TestFitReadsWhatVLLMExports(t *testing.T) {
	const metrics = `# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="4096",cache_dtype="auto"} 1
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 1000000
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{le="+Inf"} 100
vllm:request_prefill_time_seconds_sum 50
vllm:request_prefill_time_seconds_count 100
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_bucket{le="+Inf"} 1000
vllm:inter_token_latency_seconds_sum 12
vllm:inter_token_latency_seconds_count 1000
`
	base, _ := lab.Preset(lab.DefaultPreset)
	f, err := lab.FitMetrics(strings.NewReader(metrics), base)
	if err != nil {
		t.Fatal(err)
	}
	if f.Engine.Rate != 20 || f.Engine.Step != 12*time.Millisecond || f.BlockTokens != 16 || f.CacheBlocks != 4096 {
		t.Errorf("fit %+v", f)
	}
	if _, err := lab.FitMetrics(strings.NewReader("go_goroutines 3\n"), base); err == nil {
		t.Error("metrics of something else are taken for an engine's")
	}
}

func TestFitReadsAForwardersLog(t *testing.T) {
	var log strings.Builder
	for i := range 100 { // the busier the engine, the slower: an idle one shows its speed
		wait := 1 + float64(i)/20
		first := time.Duration(1000 / 16.0 * wait * float64(time.Millisecond))
		took := first + time.Duration(20*7*wait*float64(time.Millisecond))
		fmt.Fprintf(&log, "time=2026-01-01T00:00:00Z level=DEBUG msg=\"request finished\" outcome=ok prompt_tokens=1500 cached_tokens=500 output_tokens=21 ttft=%v duration=%v\n", first, took)
	}
	base, _ := lab.Preset(lab.DefaultPreset)
	f, err := lab.FitLog("log", strings.NewReader(log.String()), base)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(f.Engine.Rate-16) > 6 || f.Engine.Step < 7*time.Millisecond || f.Engine.Step > 11*time.Millisecond {
		t.Errorf("fit %+v, want about 16 tokens/ms and 7 ms", f.Engine)
	}
	if _, err := lab.FitLog("log", strings.NewReader("time=x msg=ready\n"), base); err == nil || !strings.Contains(err.Error(), "fewer than") {
		t.Errorf("an empty log: %v", err)
	}
	if _, err := lab.FitLog("log", strings.NewReader("\n\nhello\n"), base); err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("no log: %v", err)
	}
}

func TestAReportIsOneFileWithItsPlots(t *testing.T) {
	study := lab.Study{
		Runner: &lab.Runner{Parallel: 1}, Trace: drawn(t, lab.SharedPrompt, 200), Base: lab.DefaultSetup(), Floor: setup(t, "dynamo").Policy,
		Policies: []lab.Policy{setup(t, "least_latency").Policy, setup(t, "infera_w20").Policy}, Loads: []float64{50, 85},
		CachePercent: 30, Within: 3 * time.Second, Share: 0.9, Capacity: true,
	}
	rep, err := study.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var page, text strings.Builder
	if err := lab.WriteHTML(&page, rep); err != nil {
		t.Fatal(err)
	}
	if err := lab.WriteText(&text, rep); err != nil {
		t.Fatal(err)
	}
	html := page.String()
	if n := strings.Count(html, "<svg"); n != 8 { // four curves, hits, capacity, two queues
		t.Errorf("%d plots, want 8", n)
	}
	for _, outside := range []string{"<script", "<link", "<img", "@import", "url(http", "href="} {
		if strings.Contains(html, outside) {
			t.Errorf("the report has %s", outside)
		}
	}
	for _, want := range []string{"least_latency", "infera_w20", "Latency against load", "Queues over time at 85 % load"} {
		if !strings.Contains(html, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if !strings.Contains(text.String(), "keeps a first token within 3 s") || rep.Capacity["least_latency"] <= 0 {
		t.Errorf("no capacity in:\n%s", text.String())
	}
}
