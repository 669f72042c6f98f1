package lab_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pointsman/admission"
	"pointsman/internal/lab"
)

// drawn returns a small trace that a test can replay in some milliseconds.
func drawn(t *testing.T, kind string, requests int) *lab.Trace {
	t.Helper()
	cfg := lab.DefaultGenerateConfig()
	cfg.Kind, cfg.Requests = kind, requests
	trace, err := lab.Generate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// setup is 8 workers under a policy.
func setup(t *testing.T, policy string) lab.Setup {
	t.Helper()
	s := lab.DefaultSetup()
	var err error
	if s.Policy, err = lab.ParsePolicy(policy); err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t *testing.T, trace *lab.Trace, s lab.Setup) *lab.Result {
	t.Helper()
	r, err := lab.Run(t.Context(), trace, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEqualSeedsGiveEqualResultsAndOthersDoNot(t *testing.T) {
	trace := drawn(t, lab.Documents, 300)
	s := setup(t, "least_latency")
	s.Rate = 8
	text := func(seed uint64) string {
		s.Seed = seed
		b, err := json.Marshal(run(t, trace, s))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if a, b := text(1), text(1); a != b {
		t.Errorf("one seed, two results:\n%s\n%s", a, b)
	}
	if text(1) == text(2) {
		t.Error("another seed changes nothing")
	}
}

func TestAnIdleFleetTakesWhatTheEnginesConstantsSay(t *testing.T) {
	const in = `{"timestamp": 0, "input_length": 1024, "output_length": 11, "hash_ids": [1, 2]}
{"timestamp": 60000, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2, 3]}`
	cfg := lab.DefaultReadConfig()
	cfg.Warm = 0
	trace, err := lab.ReadTrace("two", strings.NewReader(in), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := setup(t, "infera_w20")
	s.Workers = 1
	r := run(t, trace, s)
	first := 6 + 1024*(1+512/50_000.0)/16 // a step and 1,024 tokens, none of them cached
	later := 6 + (1+(1024+.5)/50_000)/16  // a step and the one token that is computed
	step := 6 + .03 + 4e-5*(1024+4.5)     // on average over the ten steps of decoding
	if got := r.TTFT.P99; math.Abs(got-first) > .01 {
		t.Errorf("first prompt took %.3f ms, want %.3f", got, first)
	}
	if got := r.TTFT.P50; math.Abs(got-later) > .01 {
		t.Errorf("cached prompt took %.3f ms, want %.3f", got, later)
	}
	if got := r.TPOT.P50; math.Abs(got-step) > .01 {
		t.Errorf("a token took %.3f ms, want %.3f", got, step)
	}
	if want := 1024.0 / (1024 + 1025); r.Hit != want || r.Ceiling != want {
		t.Errorf("hits %.4f of %.4f, want both %.4f", r.Hit, r.Ceiling, want)
	}
}

func TestEveryRequestEndsWhateverHappens(t *testing.T) {
	trace := drawn(t, lab.Agents, 400)
	tests := []struct {
		name   string
		change func(*lab.Setup)
		want   func(r *lab.Result) string // "" for well
	}{
		{"undisturbed", func(*lab.Setup) {}, func(r *lab.Result) string {
			if r.Refused+r.Failed > 0 {
				return "some were lost"
			}
			return ""
		}},
		{"an engine dies and comes back", func(s *lab.Setup) {
			s.Failures = []lab.Failure{{Worker: 2, From: 10 * time.Second, For: 20 * time.Second}}
		}, func(r *lab.Result) string {
			if r.Failed > 20 {
				return "more were lost than one engine had"
			}
			return ""
		}},
		{"the gate lets few in and few wait", func(s *lab.Setup) {
			s.Admission.Mode, s.Admission.MaxOutstanding, s.Admission.QueueDepth = admission.Enforce, 8, 4
		}, func(r *lab.Result) string {
			if r.Refused == 0 || r.Queued == 0 {
				return "nobody waited or was refused"
			}
			return ""
		}},
		{"workers are capped and the gate queues", func(s *lab.Setup) {
			s.Picker.WorkerCap = 2
			s.Admission.Mode, s.Admission.QueueDepth, s.Admission.QueueWait = admission.Enforce, 10_000, time.Hour
		}, func(r *lab.Result) string {
			if r.Queued == 0 || r.Refused > 0 {
				return "nobody waited, or not for long enough"
			}
			return ""
		}},
		{"all events are lost", func(s *lab.Setup) { s.Loss = 1 }, func(r *lab.Result) string {
			if r.Hit < r.Ceiling/2 {
				return "first tokens do not heal the index"
			}
			return ""
		}},
		{"four routers with reports", func(s *lab.Setup) { s.Routers, s.ReportInterval = 4, 100*time.Millisecond }, func(*lab.Result) string { return "" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := setup(t, "least_latency")
			s.Rate, s.CacheBlocks = 10, lab.CacheFor(trace, 8, 30)
			tt.change(&s)
			r := run(t, trace, s)
			if r.Served+r.Refused+r.Failed < r.Requests || r.Served == 0 {
				t.Errorf("served %d, refused %d, failed %d of %d", r.Served, r.Refused, r.Failed, r.Requests)
			}
			if fault := tt.want(r); fault != "" {
				t.Errorf("%s: served %d, refused %d, failed %d, queued %d, hits %.2f of %.2f", fault, r.Served, r.Refused, r.Failed, r.Queued, r.Hit, r.Ceiling)
			}
		})
	}
}

func TestEnginesThatAreAllDownServeNobodyAndTheReplayEnds(t *testing.T) {
	s := setup(t, "infera_w1")
	for i := range s.Workers {
		s.Failures = append(s.Failures, lab.Failure{Worker: i, For: 1000 * time.Hour})
	}
	if r := run(t, drawn(t, lab.SharedPrompt, 300), s); r.Served != 0 || r.Failed != 300 {
		t.Errorf("served %d, failed %d of %d", r.Served, r.Failed, r.Requests)
	}
}

func TestARequestLargerThanEveryCacheIsRefused(t *testing.T) {
	s := setup(t, "infera_w1")
	s.CacheBlocks = 1
	if _, err := lab.Run(t.Context(), drawn(t, lab.SharedPrompt, 30), s, nil); err == nil || !strings.Contains(err.Error(), "give larger caches") {
		t.Errorf("error %v", err)
	}
}

func TestAReplayStopsWhenItIsToldTo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := setup(t, "infera_w1")
	s.Rate = 5
	if _, err := lab.Run(ctx, drawn(t, lab.Conversations, 400), s, nil); err == nil {
		t.Error("it went on")
	}
}

func TestImpossibleSetupsAreRefused(t *testing.T) {
	tests := []struct {
		name   string
		change func(*lab.Setup)
		want   string
	}{
		{"no prefill at all", func(s *lab.Setup) { s.Engine.Rate = 0 }, "prefill rate 0"},
		{"a negative rate", func(s *lab.Setup) { s.Engine.Rate = -1 }, "prefill rate -1"},
		{"a rate that is no number", func(s *lab.Setup) { s.Engine.Rate = math.NaN() }, "prefill rate NaN"},
		{"a negative step", func(s *lab.Setup) { s.Engine.Step = -1 }, "step of -1ns"},
		{"decoding for nothing", func(s *lab.Setup) { s.Engine.Step, s.Engine.PerDecoder, s.Engine.PerContext = 0, 0, 0 }, "takes no time"},
		{"more sequences than tokens", func(s *lab.Setup) { s.Engine.MaxSeqs = 4096 }, "more tokens than sequences"},
		{"no workers", func(s *lab.Setup) { s.Workers = 0 }, "0 workers"},
		{"a slow worker that is not there", func(s *lab.Setup) { s.Slow = []lab.Slowness{{Worker: 8, Factor: 2}} }, "slow worker 8"},
		{"a worker that is infinitely slow", func(s *lab.Setup) { s.Slow = []lab.Slowness{{Factor: math.Inf(1)}} }, "slowness"},
		{"more loss than all", func(s *lab.Setup) { s.Loss = 1.5 }, "event loss"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := lab.DefaultSetup()
			tt.change(&s)
			if err := s.Validate(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it to say %q", err, tt.want)
			}
		})
	}
	s := lab.DefaultSetup()
	if err := s.Validate(); err != nil {
		t.Errorf("the default is refused: %v", err)
	}
}
