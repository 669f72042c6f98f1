package history

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"
)

var epoch = time.Unix(1000, 0)

func at(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }

// good is a run of one stream over a mixed worker, one plain answer over a pair,
// a client that left, and a fault of a third worker.
func good() *History {
	return &History{
		Workers: []Worker{{"m1", "m", "mixed"}, {"m2", "m", "mixed"}, {"m3", "m", "mixed"}, {"p", "pd", "prefill"}, {"d", "pd", "decode"}},
		Requests: []Request{
			{ID: "a", Model: "m", Stream: true, Want: 2, Sent: at(0), FirstByte: at(0.2), End: at(1), Status: 200, Text: "a/m1/0 a/m1/1 ", Done: 1, Forwarded: true},
			{ID: "b", Model: "pd", Sent: at(0), FirstByte: at(1), End: at(1), Status: 200, Text: "b/d1/0 b/d1/1", Whole: true, Forwarded: true},
			{ID: "c", Model: "m", Stream: true, Sent: at(2), Canceled: at(2.5), End: at(2.5)},
			{ID: "d", Model: "m", Stream: true, Sent: at(11), FirstByte: at(11.1), End: at(12), Status: 200, Done: 1, Forwarded: true},
		},
		Receipts: []Receipt{
			{Worker: "m1", Request: "a", Attempt: "a/m1", Leg: "mixed", Received: at(0.1), Ended: at(1), Complete: true},
			{Worker: "p", Request: "b", Attempt: "b/p1", Leg: "prefill", Received: at(0.1), Ended: at(0.3), Complete: true},
			{Worker: "d", Request: "b", Attempt: "b/d1", Leg: "decode", Received: at(0.1), Ended: at(0.9), Complete: true},
			{Worker: "m1", Request: "c", Attempt: "c/m1", Leg: "mixed", Received: at(2.1), Ended: at(2.6)},
			{Worker: "m2", Request: "d", Attempt: "d/m1", Leg: "mixed", Received: at(11), Ended: at(12), Complete: true},
		},
		Faults:  []Fault{{Kind: "500", Worker: "m2", From: at(3), To: at(5)}},
		Samples: samples(),
		Gauges:  []Gauge{{Source: "epp", Name: "in_flight"}},
		Counted: 4, Healed: at(5), Settled: at(10), End: at(13),
	}
}

// samples are looks of one endpoint picker and of the forwarder beside m1, every half
// second: from 3 to 5 the circuit of m2 is open.
func samples() (out []Sample) {
	for t := 0.0; t <= 13; t += 0.5 {
		m2, left := Circuit{}, map[string]int{}
		if t >= 3 {
			m2.Trips = 1
		}
		if t >= 3 && t < 5 {
			m2.State, m2.Until, left["circuit_open"] = Open, at(5), 1
		}
		seen := map[string]Circuit{"m1": {}, "m2": m2, "m3": {}, "p": {}, "d": {}}
		out = append(out, Sample{At: at(t), Source: "epp", Circuits: seen, Excluded: left},
			Sample{At: at(t), Source: "forwarder", Circuits: seen, Excluded: left})
	}
	return out
}

// storm are n streams of m1's forwarder within five seconds, each with so many tries.
func storm(h *History, n int, tries string) {
	for i := range n {
		id := fmt.Sprint("s", i)
		sent := float64(i) * 5 / float64(n)
		h.Requests = append(h.Requests, Request{
			ID: id, Model: "m", Stream: true, Sent: at(sent), FirstByte: at(sent + 0.1), End: at(sent + 0.2), Status: 200, Done: 1,
			Forwarded: true, Tries: ParseTries(tries),
		})
	}
	h.Counted += float64(n)
}

// probed lets m2's circuit, whose cooldown ends at 5, open again at 9, and the requests
// fail there meanwhile.
func probed(h *History, ids ...string) {
	for i := range h.Samples {
		s := &h.Samples[i]
		if s.At.Before(at(5)) {
			continue
		}
		s.Circuits = maps.Clone(s.Circuits)
		s.Circuits["m2"] = Circuit{HalfOpen, at(5), 1}
		if !s.At.Before(at(9)) {
			s.Circuits["m2"] = Circuit{Open, at(11), 2}
		}
	}
	for i, id := range ids {
		sent := 6 + float64(i)
		h.Requests = append(h.Requests, Request{ID: id, Model: "m", Sent: at(sent), End: at(sent + 0.2), Status: 502, Tries: ParseTries("m1@m2;5xx")})
		h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: id, Attempt: id + "/m1", Leg: "mixed", Received: at(sent + 0.1), Ended: at(sent + 0.2)})
		h.Picks = append(h.Picks, Pick{At: at(sent + 0.05), Source: "epp", Request: id, Worker: "m2"})
	}
}

func TestAGoodRunBreaksNoInvariant(t *testing.T) {
	if found := Check(good(), DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestWhatTheNetworkDelaysOrTakesIsNotTheForwardersFault(t *testing.T) {
	h := good()
	h.Faults = append(h.Faults, Fault{Kind: "pause", Worker: "m2", From: at(0), To: at(0.45)}, Fault{Kind: "rst", Worker: "m2", From: at(0.45), To: at(2)})
	h.Receipts = append(h.Receipts,
		Receipt{Worker: "m2", Request: "a", Attempt: "a/m1", Leg: "mixed", Received: at(0.5), Ended: at(0.6)},
		Receipt{Worker: "m2", Request: "a", Attempt: "a/m1", Leg: "mixed", Received: at(0.5), Ended: at(0.6), Complete: true})
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestLegsThatComeBehindTheAnswerThatGaveThemUpAreNoReplay(t *testing.T) {
	h := good()
	h.Requests = append(h.Requests, Request{ID: "e", Model: "pd", Sent: at(4), FirstByte: at(4.1), End: at(4.1), Status: 502, Forwarded: true, Tries: ParseTries("d1@d;aborted,p1@p;reset,d2@d;refused")})
	h.Counted++
	h.Faults = append(h.Faults, Fault{Kind: "rst", Worker: "p", From: at(4), To: at(5)})
	h.Receipts = append(h.Receipts,
		Receipt{Worker: "d", Request: "e", Attempt: "e/d1", Leg: "decode", Received: at(4.4), Ended: at(4.5)},
		Receipt{Worker: "p", Request: "e", Attempt: "e/p2", Leg: "prefill", Received: at(4.2), Ended: at(4.3)})
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestAWorkerThatWasNotReachedExcusesAFailure(t *testing.T) {
	h := good()
	h.Requests[1].Status, h.Requests[1].Whole = 502, false
	h.Faults = append(h.Faults, Fault{Kind: "refuse", Worker: "d2", From: at(0), To: at(1)})
	h.Requests[1].Tries = ParseTries("d1@d;aborted,p1@p;reset,d2@d2;refused")
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestRetriesWithinTheBudgetAndWhatCostsNoneAreNoViolation(t *testing.T) {
	for _, tries := range []string{"m1@m1;reset,m2@m2;ok", "m1@m1;busy,m2@m2;busy,m3@m3;ok"} {
		h := good()
		storm(h, 20, tries)
		if found := Check(h, DefaultLimits()); len(found) != 0 {
			t.Errorf("%s: %v", tries, found)
		}
	}
}

func TestOneProbeOfAnOpenCircuitIsNoViolation(t *testing.T) {
	h := good()
	probed(h, "e")
	h.Faults[0].To = at(8)
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestFailuresBehindACloseByAnothersRequestAreNoProbes(t *testing.T) {
	for closes, want := range map[float64]int{6.5: 0, 8.5: 1} { // the requests come at 6 and 7
		h := good()
		probed(h, "e", "f")
		h.Faults[0].To = at(8)
		for i := range h.Samples {
			if s := &h.Samples[i]; !s.At.Before(at(closes)) && s.At.Before(at(9)) {
				s.Circuits["m2"] = Circuit{Closed, at(5), 1}
			}
		}
		if found := Check(h, DefaultLimits()); len(found["I8"]) != want || len(found) != want {
			t.Errorf("closed at %v: %v", closes, found)
		}
	}
}

func TestACircuitMayCloseWhileItsSampleIsTaken(t *testing.T) {
	h := good()
	for i := range h.Samples {
		switch s := &h.Samples[i]; {
		case s.At.Equal(at(5)): // it was open at 4.5
			s.Excluded = map[string]int{"circuit_open": 1}
		case s.At.Equal(at(8)):
			s.Excluded, s.Pairs = map[string]int{"pair_open": 1}, []Pair{{"d", Circuit{Open, at(8.2), 1}}}
		case s.At.Equal(at(8.5)):
			s.Excluded = map[string]int{"pair_open": 1}
		}
	}
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestAPickerThatWasStartedAnewHasForgottenItsCircuits(t *testing.T) {
	h := good()
	for i := range h.Samples {
		if s := &h.Samples[i]; s.Source == "epp" && s.At.After(at(3.9)) {
			s.Circuits, s.Excluded = map[string]Circuit{"m1": {}, "m2": {}, "m3": {}}, nil
		}
	}
	h.Requests = append(h.Requests, Request{ID: "e", Model: "m", Sent: at(4), End: at(4.2), Status: 200, Whole: true})
	h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "e", Attempt: "e/m1", Leg: "mixed", Received: at(4.2), Ended: at(4.3), Complete: true})
	h.Picks = append(h.Picks, Pick{At: at(4.15), Source: "epp", Request: "e", Worker: "m2"})
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestAnOpenCircuitIsPickedWhereNobodyElseIsLeft(t *testing.T) {
	h := good()
	h.Requests = append(h.Requests, Request{ID: "e", Model: "m", Sent: at(4), End: at(4.2), Status: 200, Whole: true})
	h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "e", Attempt: "e/m1", Leg: "mixed", Received: at(4.1), Ended: at(4.2), Complete: true})
	h.Picks = append(h.Picks, Pick{At: at(4.05), Source: "epp", Request: "e", Worker: "m2", Tried: []string{"m1", "m3"}})
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestACompletionThatACancelationMissedIsNoSecondOne(t *testing.T) {
	h := good()
	h.Requests[0].Tries = ParseTries("m1@m2;blameless,m2@m1;ok")
	h.Requests[0].Text, h.Receipts[0].Attempt = "a/m2/0 a/m2/1", "a/m2"
	h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "a", Attempt: "a/m1", Leg: "mixed", Received: at(0.05), Ended: at(0.4), Complete: true})
	if found := Check(h, DefaultLimits()); len(found) != 0 {
		t.Errorf("%v", found)
	}
}

func TestEachInvariantFailsWhenItIsBroken(t *testing.T) {
	tests := []struct {
		name string
		want string
		harm func(*History)
	}{
		{"a stream with [DONE] and an error event", "I1", func(h *History) { h.Requests[0].Errors = 1 }},
		{"a stream with two [DONE]", "I1", func(h *History) { h.Requests[0].Done = 2 }},
		{"a stream that ends without a terminal", "I1", func(h *History) { h.Requests[0].Done = 0 }},
		{"an event behind the terminal", "I1", func(h *History) { h.Requests[0].Late = 1 }},
		{"no answer at all", "I1", func(h *History) { h.Requests[3].Status, h.Requests[3].Done, h.Settled = 0, 0, time.Time{} }},
		{"half of a plain body that ends well", "I1", func(h *History) { h.Requests[1].Whole = false; h.Faults[0].Worker = "p"; h.Faults[0].From = at(0) }},
		{"a second attempt after the first byte", "I2", func(h *History) {
			h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "a", Attempt: "a/m2", Leg: "mixed", Received: at(0.8), Ended: at(0.9)})
		}},
		{"an attempt that the head of the answer does not name", "I2", func(h *History) {
			h.Requests[0].Tries = ParseTries("m1@m1;ok")
			h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "a", Attempt: "a/m2", Leg: "mixed", Received: at(0.25), Ended: at(0.3)})
		}},
		{"two attempts that both ran to their end", "I3", func(h *History) {
			h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "a", Attempt: "a/m2", Leg: "mixed", Received: at(0.15), Ended: at(1), Complete: true})
		}},
		{"a decode leg that ran to its end twice, whatever the network took", "I3", func(h *History) {
			h.Faults = append(h.Faults, Fault{Kind: "rst", Worker: "d", From: at(0), To: at(2)})
			h.Receipts = append(h.Receipts, Receipt{Worker: "d", Request: "b", Attempt: "b/d2", Leg: "decode", Received: at(0.2), Ended: at(0.3), Complete: true})
		}},
		{"tokens of two attempts in one text", "I4", func(h *History) { h.Requests[0].Text = "a/m1/0 a/m2/1" }},
		{"a repeated token", "I4", func(h *History) { h.Requests[0].Text = "a/m1/0 " + h.Requests[0].Text }},
		{"a missing token", "I4", func(h *History) { h.Requests[0].Text = "a/m1/0 a/m1/2" }},
		{"the text of another request", "I4", func(h *History) { h.Requests[0].Text = "b/d1/0 b/d1/1" }},
		{"a good end before the last token", "I4", func(h *History) { h.Requests[0].Text = "a/m1/0" }},
		{"tokens of an attempt that no engine knows", "I4", func(h *History) { h.Requests[0].Text = "a/m3/0 a/m3/1" }},
		{"four attempts", "I5", func(h *History) {
			for range 3 {
				h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "a", Leg: "mixed", Received: at(0.15), Ended: at(0.16)})
			}
		}},
		{"four dials of which none arrived", "I5", func(h *History) {
			h.Requests[0].Tries = ParseTries("m1@m2;refused,m2@m2;refused,m3@m2;refused,m4@m1;ok")
		}},
		{"more repetitions than the budget of a forwarder", "I5", func(h *History) { storm(h, 20, "m1@m1;reset,m2@m2;reset,m3@m3;ok") }},
		{"a gauge that stays up", "I6", func(h *History) { h.Gauges[0].Value = 1 }},
		{"a request that no counter knows", "I7", func(h *History) { h.Counted = 2 }},
		{"a request that is counted twice", "I7", func(h *History) { h.Counted = 5 }},
		{"a first attempt at an open circuit", "I8", func(h *History) {
			h.Requests = append(h.Requests, Request{ID: "e", Model: "m", Sent: at(4), End: at(4.2), Status: 200, Whole: true})
			h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "e", Attempt: "e/m1", Leg: "mixed", Received: at(4.1), Ended: at(4.2), Complete: true})
			h.Picks = append(h.Picks, Pick{At: at(4.05), Source: "epp", Request: "e", Worker: "m2"})
		}},
		{"a further attempt where the forwarder's own circuit is open", "I8", func(h *History) {
			h.Requests = append(h.Requests, Request{ID: "e", Model: "m", Sent: at(4), End: at(4.2), Status: 200, Whole: true, Tries: ParseTries("m1@m1;reset,m2@m2;ok")})
			h.Receipts = append(h.Receipts, Receipt{Worker: "m2", Request: "e", Attempt: "e/m2", Leg: "mixed", Received: at(4.15), Ended: at(4.2), Complete: true})
			h.Picks = append(h.Picks, Pick{At: at(4.1), Source: "forwarder", Request: "e", Worker: "m2", Tried: []string{"m1"}})
		}},
		{"two probes of one window", "I8", func(h *History) { probed(h, "e", "f") }},
		{"a failure at a pair that nothing was wrong with", "I9", func(h *History) { h.Requests[1].Status, h.Requests[1].Whole = 502, false }},
		{"an abandoned attempt that runs on", "I10", func(h *History) { h.Receipts[3].Ended = at(4.6) }},
		{"an attempt that never ends", "I10", func(h *History) { h.Receipts[3].Ended = time.Time{} }},
		{"an attempt that runs on beside the next one", "I10", func(h *History) {
			h.Requests[0].End, h.Receipts[0].Received, h.Receipts[0].Ended, h.Receipts[0].Complete = at(4), at(0), at(2.5), false
			h.Requests[0].FirstByte, h.Requests[0].Text, h.Requests[0].Want = at(3), "a/m2/0 a/m2/1", 2
			h.Receipts = append(h.Receipts, Receipt{Worker: "m1", Request: "a", Attempt: "a/m2", Leg: "mixed", Received: at(0.2), Ended: at(4), Complete: true})
		}},
		{"a cooldown that outlives its end", "I11", func(h *History) {
			for i := range h.Samples {
				if s := &h.Samples[i]; s.At.Equal(at(6.5)) {
					s.Excluded = map[string]int{"circuit_open": 1}
				}
			}
		}},
		{"a pair's cooldown that outlives its end", "I11", func(h *History) {
			h.Samples[16].Excluded, h.Samples[16].Pairs = map[string]int{"pair_open": 1}, []Pair{{"d", Circuit{HalfOpen, at(2), 1}}}
		}},
		{"a worker that is called busy long after it said so", "I11", func(h *History) {
			storm(h, 1, "m1@m1;busy,m2@m2;ok")
			h.Samples[len(h.Samples)-1].Excluded = map[string]int{"busy": 1}
			h.Requests[3].Tries = ParseTries("m1@m2;ok")
		}},
		{"a worker that is called sick long after it was healed", "I11", func(h *History) {
			h.Samples = append(h.Samples, Sample{At: at(30), Source: "epp", Excluded: map[string]int{"unhealthy": 1}})
		}},
		{"a worker that stays left out", "I11", func(h *History) {
			h.Receipts[4].Worker = "m1"
			for range 24 {
				h.Receipts = append(h.Receipts, Receipt{Worker: "m1", Received: at(12), Ended: at(12.1), Complete: true})
			}
		}},
		{"failures after everything was healed", "I12", func(h *History) { h.Requests[3].Done, h.Requests[3].Errors = 0, 1; h.Faults[0].To = at(9) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := good()
			tt.harm(h)
			found := Check(h, DefaultLimits())
			if tt.want == "I1" { // what ends wrongly did not succeed either
				delete(found, "I9")
			}
			if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, []string{tt.want}) {
				t.Errorf("broken: %v, want %s: %v", got, tt.want, found)
			}
		})
	}
}
