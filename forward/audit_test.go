package forward_test

import (
	"sync"
	"testing"

	"pointsman/forward"
	"pointsman/prompt/audit"
)

// books collects what is audited.
type books struct {
	mu   sync.Mutex
	list []audit.Report
}

func (b *books) open(_ *forward.Config, d *forward.Deps) {
	d.Audit = func(r audit.Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.list = append(b.list, r)
	}
}

func (b *books) reports() []audit.Report {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]audit.Report(nil), b.list...)
}

// TestWhatEnginesCountIsAudited reads usage out of whole answers, streamed or not,
// of the worker that gave them, and out of nothing else.
func TestWhatEnginesCountIsAudited(t *testing.T) {
	const (
		usage  = `"usage":{"prompt_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}`
		answer = `{"choices":[{"message":{"content":"x"}}],` + usage + `}`
		ids    = `{"model":"m","prompt":[7,8],"max_tokens":1}`
	)
	last := "data: {\"choices\":[]," + usage + "}\n\n"
	tests := []struct {
		name    string
		scripts []script
		call    call
		options []option
		want    *audit.Report // Model, Form, Skip, Worker, Counted, Cached and Tokens count; nil for none
	}{
		{
			"a plain answer",
			[]script{raw(jsonReply(200, answer))},
			call{path: "/v1/completions", body: ids},
			nil,
			&audit.Report{Form: audit.FormIDs, Worker: "w1", Tokens: 2, Counted: 2, Cached: 1},
		},
		{
			"a stream that ends with usage",
			[]script{raw(sse(tok0, last, done))},
			call{body: streamBody},
			nil,
			&audit.Report{Form: audit.FormChat, Skip: audit.SkipApprox, Worker: "w1", Counted: 2, Cached: 1},
		},
		{
			"a stream without usage",
			[]script{raw(sse(tok0, done))},
			call{path: "/v1/completions", body: `{"model":"m","prompt":[7,8],"stream":true}`},
			nil,
			&audit.Report{Form: audit.FormIDs, Skip: audit.SkipNoUsage, Worker: "w1", Tokens: 2, Cached: -1},
		},
		{"an error", []script{raw(jsonReply(400, answer))}, call{path: "/v1/completions", body: ids}, nil, nil},
		{"a stream that is cut", []script{rawClose(sseOpen(tok0, last))}, call{body: streamBody}, nil, nil},
		{"a worker that a gateway chose", []script{raw(jsonReply(200, answer))}, call{path: "/v1/completions", body: ids, header: toW1}, []option{direct}, nil},
		{"another API", []script{raw(jsonReply(200, answer))}, call{path: "/v1/embeddings", body: `{"model":"m","input":"x"}`}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b books
			w := newWorld(t, tt.scripts, append(tt.options, b.open)...)
			w.do(tt.call)
			w.settled(1)
			got := b.reports()
			if tt.want == nil {
				if len(got) != 0 {
					t.Errorf("audited %+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Began.IsZero() {
				t.Fatalf("audited %+v", got)
			}
			r := got[0]
			if r.Skip == audit.SkipApprox {
				r.Tokens = 0 // an estimate
			}
			want := *tt.want
			want.Model, want.Began, want.Source = "m", r.Began, r.Source
			if r != want {
				t.Errorf("audited %+v, want %+v", r, want)
			}
		})
	}
}
