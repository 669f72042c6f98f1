package picker_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// expected returns how long w's picker expects an answer to be.
func (w *world) expected() float64 {
	w.Helper()
	return w.p.Dry(w.now, w.request("new:160")).ExpectedOutput
}

func TestTheLengthOfAnswersIsLearned(t *testing.T) {
	w := newWorld(t, config(picker.LeastLatency, 1), workers("A", "B")...)
	if got := w.expected(); got != 340 {
		t.Errorf("%g tokens before anything has ended, want the configured 340", got)
	}
	answer := func(n, tokens int) {
		for i := range n {
			d := w.pick(w.request(fmt.Sprintf("r%d-%d:160", tokens, i)))
			d.FirstToken(w.now)
			d.Answered(tokens)
			d.Done(w.now, breaker.Success)
			d.Answered(1e6) // of a request that has been given back: nothing
		}
	}
	answer(20, 100)
	if got := w.expected(); math.Abs(got-225) > 5 { // as many as stand for the configuration
		t.Errorf("%g tokens after 20 answers of 100, want about 225: the later ones count more", got)
	}
	answer(400, 100)
	if got := w.expected(); got > 150 || got < 100 {
		t.Errorf("%g tokens after 420 answers of 100", got)
	}
	answer(400, 1000) // the model is used for something else now
	if got := w.expected(); got < 800 {
		t.Errorf("%g tokens after 400 answers of 1000", got)
	}
}

// A wrong number of one engine is forgotten with the answers that follow it.
func TestAnAbsurdLengthIsForgottenSoon(t *testing.T) {
	w := newWorld(t, config(picker.LeastLatency, 1), workers("A")...)
	for i := range 100 {
		d := w.pick(w.request(fmt.Sprintf("r%d:160", i)))
		tokens := 100
		if i == 0 {
			tokens = math.MaxInt
		}
		d.FirstToken(w.now)
		d.Answered(tokens)
		d.Done(w.now, breaker.Success)
	}
	if got := w.expected(); got > 1000 {
		t.Errorf("%g tokens after one answer of %d and 99 of 100", got, math.MaxInt)
	}
}

func TestAnAnswerOfNoKnownLengthTeachesNothing(t *testing.T) {
	w := newWorld(t, config(picker.LeastLatency, 1), workers("A")...)
	d := w.pick(w.request("a:160"))
	d.Answered(0)
	d.Answered(-1)
	d.Done(w.now, breaker.Success)
	var none picker.Decision
	none.Answered(10)
	if got := w.expected(); got != 340 {
		t.Errorf("%g tokens, want 340", got)
	}
}

// Decode legs are chosen while their prompts are still computed elsewhere: those that
// were picked just now are on their workers already, as far as the next pick goes.
func TestABurstOfPairsIsSpreadOverTheDecodeWorkers(t *testing.T) {
	w := newWorld(t, config(picker.LeastLatency, 1), leg("p0", "a"), leg("d0", "a"), leg("d1", "a"), leg("d2", "a"), leg("d3", "a"))
	w.hold("d0", "sys:1600", 16)
	went := map[string]int{}
	for i := range 80 {
		d := w.pick(w.request(fmt.Sprintf("sys:1600+q%d:160", i)))
		went[d.Worker.ID]++
		w.now = w.now.Add(time.Millisecond)
	}
	for id, n := range went {
		if n > 30 {
			t.Errorf("%s has %d of 80 requests, among 4", id, n)
		}
	}
	if len(went) != 4 {
		t.Errorf("went to %v, want 4 workers", went)
	}
}
