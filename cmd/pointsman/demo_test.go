package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// at returns a result sent and ended the given milliseconds after epoch.
func at(id, worker string, sent, end int, shape string) traffic.Result {
	r := traffic.Result{
		Request: &traffic.Request{ID: id}, Worker: worker, Status: 200,
		Sent: epoch.Add(time.Duration(sent) * time.Millisecond), End: epoch.Add(time.Duration(end) * time.Millisecond),
	}
	switch shape {
	case "ok":
		r.Texts, r.Finish, r.Dones = 3, true, 1
	case "interrupted":
		r.Texts, r.Errors = 3, 1
	case "told":
		r.Status, r.Detail = 502, "upstream_reset"
	case "refused":
		r.Status, r.Detail = 503, "no worker"
	case "broken":
		r.Texts, r.Err = 2, errors.New("connection reset")
	}
	return r
}

// ran makes an outcome of results, with the given median TTFT and hit ratio.
func ran(ttft time.Duration, hit float64, results ...traffic.Result) outcome {
	o := outcome{results: results, summary: traffic.Summarize(results), ceiling: .5}
	o.summary.TTFTp50, o.summary.HitRatio = ttft, hit
	return o
}

func TestTheDemoKeepsItsPromisesOrSaysWhichItBroke(t *testing.T) {
	ms := time.Millisecond
	good := func() (outcome, outcome) {
		kv := ran(50*ms, .45,
			at("before", "v", 0, 50, "ok"), at("cut", "v", 60, 110, "interrupted"), at("lucky", "v", 60, 101, "ok"),
			at("elsewhere", "w", 60, 200, "ok"), at("after", "w", 120, 200, "ok"))
		kv.victim, kv.killed = "v", epoch.Add(100*ms)
		return ran(90*ms, .1, at("a", "v", 0, 10, "ok")), kv
	}
	tests := []struct {
		name   string
		change func(baseline, kv *outcome)
		says   string // "" for no fault
	}{
		{"a good run", func(_, _ *outcome) {}, ""},
		{"a refusal", func(_, kv *outcome) {
			*kv = withResult(*kv, at("r", "", 130, 140, "refused"))
		}, "r at \"\": status 503"},
		{"a broken stream", func(_, kv *outcome) {
			*kv = withResult(*kv, at("b", "v", 60, 101, "broken"))
		}, "connection reset"},
		{"a refusal in the first run", func(b, _ *outcome) {
			*b = withResult(*b, at("r", "", 130, 140, "refused"))
		}, "clients saw 1 errors"},
		{"an interruption at another worker", func(_, kv *outcome) {
			*kv = withResult(*kv, at("x", "w", 60, 120, "interrupted"))
		}, `x was interrupted at "w", which was not killed under it`},
		{"an interruption of a request sent after the kill", func(_, kv *outcome) {
			*kv = withResult(*kv, at("x", "v", 130, 140, "interrupted"))
		}, "not killed under it"},
		{"nobody was killed", func(_, kv *outcome) { kv.victim = "" }, "none was killed"},
		{"events that do not arrive", func(_, kv *outcome) { kv.blind = []string{"a:1"} }, "the cache events of [a:1] did not reach the EPP"},
		{"too few hits", func(_, kv *outcome) { kv.summary.HitRatio = .39 }, "below 0.8 of the ceiling"},
		{"slower than round-robin", func(_, kv *outcome) { kv.summary.TTFTp50 = 90 * ms }, "not below round-robin's"},
		{"an interruption without a kill", func(b, _ *outcome) {
			*b = withResult(*b, at("x", "v", 1, 2, "interrupted"))
		}, "although nobody was killed"},
	}
	for _, tt := range tests {
		baseline, kv := good()
		tt.change(&baseline, &kv)
		report, faults := judge(baseline, kv)
		err := errors.Join(faults...)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want it to say %q; report %+v", tt.name, err, tt.says, report)
		}
		if tt.says == "" && (report.Requests != 5 || report.OK != 4 || report.Interrupted != 1 || report.OpenAtKill != 2 || report.TTFT != 50) {
			t.Errorf("report %+v", report)
		}
	}
}

func TestADecodeLegThatWaitedAtTheKilledEngineIsAnInterruptionOfPairsOnly(t *testing.T) {
	run := func(worker string, sent int, pairs bool) (demoReport, error) {
		kv := ran(50*time.Millisecond, .45, at("a", "v", 0, 50, "ok"), at("cut", "v", 60, 110, "interrupted"), at("told", worker, sent, 130, "told"))
		kv.victim, kv.killed = "v", epoch.Add(100*time.Millisecond)
		if pairs {
			kv.pairing = &pairing{pairs: 2}
		}
		report, faults := judge(ran(90*time.Millisecond, .1, at("a", "v", 0, 10, "ok")), kv)
		return report, errors.Join(faults...)
	}
	report, err := run("v", 60, true)
	if err != nil || report.Interrupted != 2 || report.OpenAtKill != 2 || report.ClientErrors != 0 {
		t.Errorf("report %+v, %v", report, err)
	}
	for name, err := range map[string]error{
		"of mixed workers":   second(run("v", 60, false)),
		"at another engine":  second(run("w", 60, true)),
		"sent after the end": second(run("v", 120, true)),
	} {
		if err == nil || !strings.Contains(err.Error(), "clients saw 1 errors") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ demoReport, err error) error { return err }

// withResult adds a result to o and sums up again, keeping its two ratios.
func withResult(o outcome, r traffic.Result) outcome {
	ttft, hit := o.summary.TTFTp50, o.summary.HitRatio
	o.results = append(o.results, r)
	o.summary = traffic.Summarize(o.results)
	o.summary.TTFTp50, o.summary.HitRatio = ttft, hit
	return o
}

func twoWorkers() []*stack.Worker { return []*stack.Worker{{ID: "a:1"}, {ID: "b:1"}} }

func TestTheVictimIsTheBusiestOnceEnoughWasSent(t *testing.T) {
	tr := newTracker(10, twoWorkers())
	o := tr.observer()
	victim := make(chan string, 1)
	go func() { victim <- tr.waitForVictim(t.Context(), 4) }()
	first := func(worker string) *traffic.Result {
		r := at("x", worker, 0, 0, "")
		r.First, r.Texts = epoch.Add(time.Millisecond), 1
		o.Sent(r.Request)
		o.First(&r)
		return &r
	}
	first("a:1")
	ended := first("a:1")
	ended.Finish, ended.Dones, ended.PromptTokens, ended.CachedTokens = true, 1, 100, 40
	o.Ended(ended)
	first("b:1")
	select {
	case got := <-victim:
		t.Fatalf("victim %q after three requests", got)
	default:
	}
	first("b:1")
	if got := <-victim; got != "b:1" {
		t.Errorf("victim %q, want b:1 with two streams", got)
	}
	tr.lost("b:1")
	s := tr.standing()
	if s.sent != 4 || s.ok != 1 || s.hit != .4 || s.ttftP50 != time.Millisecond || s.workers[0].flowing != 1 || !s.workers[1].lost {
		t.Errorf("standing %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := newTracker(1, twoWorkers()).waitForVictim(ctx, 0); got != "" {
		t.Errorf("victim %q of a run that ended", got)
	}
}

func TestTheTableIsRedrawnOnATerminalAndALineElsewhere(t *testing.T) {
	tr := newTracker(10, twoWorkers())
	tr.lost("b:1")
	var out bytes.Buffer
	v := &view{out: &out, terminal: true}
	breakers := map[string]string{"a:1": "closed", "b:1": "open"}
	v.show("kv-aware", tr.standing(), breakers)
	v.show("kv-aware", tr.standing(), breakers)
	mustSay(t, out.String(), "a:1", "open  killed", "\x1b[4A")
	out.Reset()
	v = newView(&out)
	v.show("kv-aware", tr.standing(), breakers)
	mustSay(t, out.String(), "0/10", "open 0/x", "breaker of b:1 open")
	if strings.Contains(out.String(), "\x1b") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("not one plain line: %q", out.String())
	}
}

func TestThePlanComesFromTheSeedOrTheTrace(t *testing.T) {
	cfg := demoConfig{seed: 3, requests: 20, over: time.Second}
	plan, err := cfg.plan()
	if err != nil || plan.Len() == 0 {
		t.Fatalf("%v", err)
	}
	cfg.trace = filepath.Join(t.TempDir(), "trace.jsonl")
	if _, err = cfg.plan(); err == nil {
		t.Error("a missing trace is no error")
	}
	if err = os.WriteFile(cfg.trace, []byte(`{"timestamp":0,"input_length":100,"output_length":10,"hash_ids":[1]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if plan, err = cfg.plan(); err != nil || plan.Len() != 1 {
		t.Errorf("%v", err)
	}
}
