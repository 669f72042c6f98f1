package picker_test

import (
	"fmt"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// busy is a world of n workers with warm caches and requests in flight, and the
// requests to go on with: half of them hit a whole prompt, half its beginning.
func busy(tb testing.TB, policy string, n, blocks int) (*world, []*picker.Request) {
	tb.Helper()
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250))
	}
	w := newWorld(tb, config(policy, 20), workers(ids...)...)
	var reqs []*picker.Request
	for i := range 64 {
		prompt := fmt.Sprintf("sys:%d+own%d:%d", 32*16, i, (blocks-32)*16)
		if i%2 == 0 {
			w.hold(ids[i%n], prompt, 16)
		}
		req := w.request(prompt)
		req.Tried = []string{"nobody"}
		reqs = append(reqs, req)
	}
	return w, reqs
}

// step is one request: picked, answered and done while others are in flight.
func step(w *world, open []picker.Decision, reqs []*picker.Request, i int) {
	w.now = w.now.Add(time.Millisecond)
	d := &open[i%len(open)]
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	next, err := w.p.Pick(w.now, reqs[i%len(reqs)])
	if err != nil {
		w.Fatal(err)
	}
	*d = next
}

func TestPickDoesNotAllocate(t *testing.T) {
	for _, policy := range picker.Policies() {
		w, reqs := busy(t, policy, 50, 256)
		open := make([]picker.Decision, 32)
		i := 0
		next := func() { step(w, open, reqs, i); i++ }
		for range 1000 { // the ring is full and every buffer has its size
			next()
		}
		if n := testing.AllocsPerRun(1000, next); n != 0 {
			t.Errorf("%s: %g allocations for a pick, its first token and its end, want 0", policy, n)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, policy := range picker.Policies() {
		for _, n := range []int{8, 200, 1000} {
			b.Run(fmt.Sprintf("%s/%d", policy, n), func(b *testing.B) {
				w, reqs := busy(b, policy, n, 256)
				open := make([]picker.Decision, 64)
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					step(w, open, reqs, i)
					i++
				}
			})
		}
	}
}
