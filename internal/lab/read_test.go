package lab_test

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"pointsman/internal/lab"
)

const mooncakeLine = `{"timestamp": 1, "input_length": 600, "output_length": 5, "hash_ids": [7, 8]}` + "\n"

func TestBadTracesAreRefusedWithTheLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"an empty file", "", "nothing in it"},
		{"no trace", "hello\n", "line 1"},
		{"no JSON behind a good line", mooncakeLine + "{\n", "line 2"},
		{"no timestamp", mooncakeLine + `{"input_length": 6, "output_length": 5, "hash_ids": []}`, "line 2: timestamp is missing"},
		{"no input_length", mooncakeLine + `{"timestamp": 2, "output_length": 5, "hash_ids": []}`, "line 2: input_length is missing"},
		{"no output_length", mooncakeLine + `{"timestamp": 2, "input_length": 6, "hash_ids": []}`, "line 2: output_length is missing"},
		{"no hash_ids", mooncakeLine + `{"timestamp": 2, "input_length": 6, "output_length": 5}`, "line 2: hash_ids is missing"},
		{"too few hash_ids", mooncakeLine + `{"timestamp": 2, "input_length": 6000, "output_length": 5, "hash_ids": [1]}`, "line 2: 1 hash_ids for 6000 tokens"},
		{"an empty prompt", mooncakeLine + `{"timestamp": 2, "input_length": 0, "output_length": 5, "hash_ids": []}`, "line 2: a prompt of 0 tokens"},
		{"an empty answer", mooncakeLine + "\n" + `{"timestamp": 2, "input_length": 9, "output_length": 0, "hash_ids": []}`, "line 3: an answer of 0 tokens"},
		{"a prompt beyond all windows", `{"timestamp": 2, "input_length": 999999999, "output_length": 1, "hash_ids": []}`, "line 1"},
		{"time that goes backwards", mooncakeLine + strings.Replace(mooncakeLine, `: 1,`, `: 0.5,`, 1), "line 2: its time is 500µs before"},
		{"a time before all", strings.Replace(mooncakeLine, `: 1,`, `: -5,`, 1), "line 1: timestamp -5"},
		{"a CSV with a field too few", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808\n", "line 2: 2 fields"},
		{"a CSV with a bad time", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,4808,10\n", `line 2: TIMESTAMP "yesterday"`},
		{"a CSV with a bad number", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,many,10\n", "line 2: ContextTokens"},
		{"a CSV with an empty answer", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,0\n", "line 2: an answer of 0"},
		{"a log whose requests have no lengths", "time=2026-01-01T00:00:00Z level=DEBUG msg=\"request finished\" outcome=ok duration=1s\n", "line 1: prompt_tokens is missing"},
		{"a log without a request", "time=2026-01-01T00:00:00Z level=INFO msg=ready\n", "no requests in it"},
		{"a line without an end", `{"timestamp": 1, "hash_ids": [` + strings.Repeat("1,", 9<<20), "line 1: longer than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := lab.ReadTrace("t", strings.NewReader(tt.in), lab.DefaultReadConfig())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want it to say %q", err, tt.want)
			}
		})
	}
}

// endless is a trace of any number of rows.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	n := 0
	for len(p)-n >= len(mooncakeLine) {
		n += copy(p[n:], mooncakeLine)
	}
	e.read += n
	return n, nil
}

func TestABillionRowsAreReadNoFurtherThanAsked(t *testing.T) {
	in := new(endless)
	cfg := lab.DefaultReadConfig()
	cfg.Requests = 1000
	trace, err := lab.ReadTrace("t", in, cfg)
	if err != nil || len(trace.Requests) != 1000 {
		t.Fatalf("%v", err)
	}
	if in.read > 1<<20 {
		t.Errorf("read %d bytes for 1000 rows", in.read)
	}
	if testing.Short() {
		return
	}
	cfg.Requests = 0
	if _, err := lab.ReadTrace("t", io.LimitReader(in, 1<<40), cfg); err == nil || !strings.Contains(err.Error(), "--requests") {
		t.Errorf("an endless trace: %v", err)
	}
}

func TestEveryFormatIsRead(t *testing.T) {
	tests := []struct {
		name, in string
		requests int
		prompt   float64
		ceiling  float64
		span     time.Duration
	}{
		{"mooncake", mooncakeLine + strings.Replace(mooncakeLine, ": 1,", ": 501,", 1), 2, 600, 512 / 1200.0, 500 * time.Millisecond},
		{"azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,600,10\r\n2023-11-16 18:17:04.0319600,1000,8\r\n", 2, 800, 0, 52 * time.Millisecond},
		{
			"access log as text, by when requests came",
			`time=2026-01-01T00:00:09Z level=DEBUG msg="request finished" request_id="a b" outcome=ok prompt_tokens=1100 output_tokens=7 prefix=a.b duration=1s` + "\n" +
				`time=2026-01-01T00:00:10Z level=INFO msg="something else"` + "\n" +
				`time=2026-01-01T00:00:10Z level=DEBUG msg="request finished" outcome=ok prompt_tokens=1100 output_tokens=9 prefix=a.c duration=4s` + "\n" +
				`time=2026-01-01T00:00:11Z level=DEBUG msg="request finished" outcome=5xx duration=4s` + "\n",
			2, 1100, 512 / 2200.0, 2 * time.Second,
		},
		{"access log as JSON", `{"time":"2026-01-01T00:00:09Z","level":"DEBUG","msg":"request finished","outcome":"ok","prompt_tokens":1100,"output_tokens":7,"duration":1000000000,"workers":["w"]}`, 1, 1100, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			trace, err := lab.ReadTrace("t", strings.NewReader(tt.in), lab.DefaultReadConfig())
			if err != nil {
				t.Fatal(err)
			}
			prompt, _ := trace.Means()
			if len(trace.Requests) != tt.requests || prompt != tt.prompt || trace.Ceiling() != tt.ceiling || trace.Duration() != tt.span {
				t.Errorf("%d requests of %g tokens over %v, ceiling %g; want %d of %g over %v, %g",
					len(trace.Requests), prompt, trace.Duration(), trace.Ceiling(), tt.requests, tt.prompt, tt.span, tt.ceiling)
			}
		})
	}
}

func TestARealTraceIsReadWhole(t *testing.T) {
	const path = "../../../shared/traces/mooncake_conversation_trace.jsonl"
	if _, err := os.Stat(path); err != nil {
		t.Skip("the trace is not here")
	}
	trace, err := lab.ReadTraceFile(path, lab.DefaultReadConfig())
	if err != nil {
		t.Fatal(err)
	}
	if n, c := len(trace.Requests), trace.Ceiling(); n != 12_031 || c < .36 || c > .38 {
		t.Errorf("%d requests with a ceiling of %.3f", n, c)
	}
	together := 0
	for i := 1; i < len(trace.Requests); i++ {
		if trace.Requests[i].At == trace.Requests[i-1].At {
			together++
		}
	}
	if together > 10 {
		t.Errorf("%d requests come together: the coarse clock was not spread", together)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add(mooncakeLine)
	f.Add("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,600,10\n")
	f.Add(`time=2026-01-01T00:00:09Z msg="request finished" outcome=ok prompt_tokens=1100 output_tokens=7 prefix=a.b duration=1s`)
	f.Add(`{"msg":"request finished"}`)
	f.Fuzz(func(t *testing.T, in string) {
		trace, err := lab.ReadTrace("t", strings.NewReader(in), lab.DefaultReadConfig())
		if err != nil {
			return
		}
		for i := range trace.Requests {
			if r := &trace.Requests[i]; r.Prompt < 1 || r.Output < 1 || r.At < 0 {
				t.Errorf("request %d: %+v", i, r)
			}
		}
	})
}
