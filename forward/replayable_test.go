package forward_test

import (
	"fmt"
	"strings"
	"testing"

	"pointsman/internal/lab"
)

func TestTheAccessLogCanBeReplayed(t *testing.T) {
	w := newWorld(t, []script{good})
	ids := make([]string, 1600)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	ask := func(n int, last string) {
		body := fmt.Sprintf(`{"model":"m","prompt":[%s,%s]}`, strings.Join(ids[:n-1], ","), last)
		if r := w.do(call{path: "/v1/completions", body: body}); r.status != 200 {
			t.Fatalf("status %d: %s", r.status, r.body)
		}
	}
	ask(1100, "7")
	ask(1600, "8") // has the first 1,024 tokens of the other
	w.settled(2)
	fatal(t, w.stop())
	trace, err := lab.ReadTrace("log", strings.NewReader(w.logs.String()), lab.DefaultReadConfig())
	if err != nil {
		t.Fatalf("%v\n%s", err, w.logs.String())
	}
	if n := len(trace.Requests); n != 2 || trace.Requests[0].Prompt != 1100 || trace.Requests[1].Prompt != 1600 {
		t.Fatalf("%d requests: %+v", n, trace.Requests)
	}
	if got, want := trace.Ceiling(), 1024.0/2700; got != want {
		t.Errorf("ceiling %.4f, want %.4f: the two share 1,024 tokens", got, want)
	}
}
