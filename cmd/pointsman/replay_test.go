package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pointsman/internal/lab"
	"pointsman/picker"
)

func TestReplayRefusesWhatCannotBe(t *testing.T) {
	for _, tt := range []struct{ name, args, want string }{
		{"a price below its range", "--latency-lambda 0.5", "lambda 0.5: want 1 to 20"},
		{"a price that is no number", "--latency-kappa NaN", "kappa NaN"},
		{"an answer of no tokens", "--latency-output-tokens 0", "output-tokens 0"},
		{"words for a number", "--latency-slack much", "must be a number"},
		{"an engine of no speed", "--engine-rate 0", "prefill rate 0"},
		{"a step too small for its sequences", "--engine-chunk 64 --engine-seqs 64", "give more tokens than sequences"},
		{"an unknown engine", "--engine 99k", `engine preset "99k" is unknown`},
		{"an unknown policy", "--policies fastest", `policy "fastest" is unknown`},
		{"a weight that is none", "--policies kv-aware=heavy", `"heavy" is no weight`},
		{"no load at all", "--loads 0", "--loads 0"},
		{"no cache", "--cache-pct 0", "--cache-blocks"},
		{"a slow worker that is not there", "--slow 8x10", "slow worker 8"},
		{"a slow worker without a factor", "--slow 7", "WORKERxFACTOR"},
		{"a failure without a time", "--fail 2@soon", "WORKER@FROM+FOR"},
		{"a crowd of nobody", "--burst many", "REQUESTS@START/OVER"},
		{"more events lost than there are", "--event-loss 1.5", "event loss 1.5"},
		{"a gate of no kind", "--fc-mode sometimes", "--fc-mode"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := run(t, append([]string{"replay", "--requests", "40"}, strings.Fields(tt.args)...)...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", tt.args, err, tt.want)
			}
		})
	}
}

func TestReplayTunesLeastLatency(t *testing.T) {
	o, err := parseReplay([]string{"--latency-lambda", "3", "--latency-kappa", "0"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	want := picker.DefaultLatency()
	want.Lambda, want.Kappa = 3, 0
	if o.setup.Picker.Latency != want {
		t.Errorf("%+v, want %+v", o.setup.Picker.Latency, want)
	}
}

// The report is one file: whatever it shows is in it.
func TestReplayWritesAReportThatNeedsNoNetwork(t *testing.T) {
	html := filepath.Join(t.TempDir(), "report.html")
	out, err := run(t, "replay", "--generate", lab.SharedPrompt, "--requests", "120", "--workers", "2", "--loads", "85", "--policies", "least_latency,infera_w20", "--html", html, "--json", "-")
	if err != nil {
		t.Fatal(err)
	}
	var report struct{ Runs []lab.Result }
	if err = json.Unmarshal([]byte(out), &report); err != nil || len(report.Runs) != 2 {
		t.Errorf("JSON with %d results: %v", len(report.Runs), err)
	}
	page, err := os.ReadFile(html)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	mustSay(t, text, "<svg", "least_latency", "infera_w20")
	for _, no := range []string{"<script", "src=", "@import", "url(", "<link"} {
		if strings.Contains(text, no) {
			t.Errorf("the report has %q", no)
		}
	}
}

func TestReplayTellsWhatABurstGot(t *testing.T) {
	out, err := run(t, "replay", "--generate", lab.SharedPrompt, "--requests", "120", "--workers", "2", "--loads", "85", "--policies", "least_latency", "--burst", "30@20m/2s,2048+512")
	if err != nil {
		t.Fatal(err)
	}
	mustSay(t, out, "least_latency at 85 % load: first tokens of the burst within ")
}
