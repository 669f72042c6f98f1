package chaos

import (
	"strings"
	"testing"

	"pointsman/internal/history"
	"pointsman/internal/simengine"
)

func TestAClientSeesWhatAStreamSays(t *testing.T) {
	const a, b = "data: {\"choices\":[{\"delta\":{\"content\":\"r/m1/0 \"}}]}\n\n", "data: {\"choices\":[{\"delta\":{\"content\":\"r/m1/1 \"}}]}\n\n"
	const failure = "data: {\"error\":{\"message\":\"it broke\",\"code\":\"upstream_reset\"}}\n\n"
	tests := []struct {
		name, body         string
		done, errors, late int
		text               string
		bad                bool
	}{
		{name: "a good end", body: a + b + "data: [DONE]\n\n", done: 1, text: "r/m1/0 r/m1/1 "},
		{name: "an error event", body: a + failure, errors: 1, text: "r/m1/0 "},
		{name: "no end", body: a, text: "r/m1/0 "},
		{name: "two ends", body: a + "data: [DONE]\n\ndata: [DONE]\n\n", done: 2, late: 1, text: "r/m1/0 "},
		{name: "an error behind the end", body: a + "data: [DONE]\n\n" + failure, done: 1, errors: 1, late: 1, text: "r/m1/0 "},
		{name: "half an event", body: a + "data: {\"choi\n\n", text: "r/m1/0 ", bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r history.Request
			err := readStream(strings.NewReader(tt.body), &r)
			if r.Done != tt.done || r.Errors != tt.errors || r.Late != tt.late || r.Text != tt.text || (err != nil) != tt.bad {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

func TestAClientTellsAWholeBodyFromAnError(t *testing.T) {
	var whole, refused, plain history.Request
	_ = readWhole([]byte(`{"choices":[{"message":{"content":"r/m1/0 "}}]}`), &whole)
	_ = readWhole([]byte(`{"error":{"message":"no","code":"no_worker"}}`), &refused)
	_ = readWhole([]byte("upstream connect error"), &plain)
	if !whole.Whole || whole.Text != "r/m1/0 " || refused.Whole || refused.Code != "no_worker: no" || plain.Whole || plain.Code == "" {
		t.Errorf("%+v\n%+v\n%+v", whole, refused, plain)
	}
}

// Engines are told names of their own making (--engine-request-id): a receipt belongs
// to the request that its attempt is of.
func TestAReceiptBelongsToTheRequestOfItsAttempt(t *testing.T) {
	for _, r := range []simengine.Receipt{
		{RequestID: "c1-7/m1/0badcafe", AttemptID: "c1-7/m1"},
		{RequestID: "c1-7", AttemptID: "c1-7/d2"},
		{RequestID: "c1-7"},
	} {
		if got := receiptOf(&r); got.Request != "c1-7" || got.Attempt != r.AttemptID {
			t.Errorf("%+v is of request %q", r, got.Request)
		}
	}
}
