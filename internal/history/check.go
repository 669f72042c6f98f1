package history

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// invariant is one rule: it calls broken for each violation.
type invariant struct {
	name  string
	check func(*view, func(format string, args ...any))
}

func invariants() []invariant {
	return []invariant{
		{"I1", oneTerminal},
		{"I2", noReplay},
		{"I3", oneCompletion},
		{"I4", oneGeneration},
		{"I5", fewAttempts},
		{"I6", nothingHeld},
		{"I7", allCounted},
		{"I8", openMeansOut},
		{"I9", isolation},
		{"I10", abortsArrive},
		{"I11", allReturn},
		{"I12", success},
	}
}

// Check returns what is wrong with h, by invariant; those that hold are absent.
func Check(h *History, l Limits) map[string][]string {
	v := newView(h, l)
	found := map[string][]string{}
	for _, i := range invariants() {
		i.check(v, func(format string, args ...any) {
			found[i.name] = append(found[i.name], fmt.Sprintf(format, args...))
		})
	}
	return found
}

// view is a history with what is looked up often.
type view struct {
	*History
	limits   Limits
	receipts map[string][]*Receipt // by request ID
	workers  map[string]Worker
}

func newView(h *History, l Limits) *view {
	v := &view{History: h, limits: l, receipts: map[string][]*Receipt{}, workers: map[string]Worker{}}
	for i := range h.Receipts {
		r := &h.Receipts[i]
		v.receipts[r.Request] = append(v.receipts[r.Request], r)
	}
	for _, w := range h.Workers {
		v.workers[w.ID] = w
	}
	return v
}

// disturbed reports whether a fault concerned the worker within [from, to], or,
// with "", all workers.
func (v *view) disturbed(worker string, from, to time.Time) bool {
	return slices.ContainsFunc(v.Faults, func(f Fault) bool {
		return !f.Tame && (f.Worker == worker || f.Worker == "") && f.From.Before(to) && f.To.Add(v.limits.Aftermath).After(from)
	})
}

// struck reports whether a fault of one of the kinds concerned the worker, or any
// with "", within [from, to].
func (v *view) struck(worker string, from, to time.Time, kinds ...string) bool {
	return slices.ContainsFunc(v.Faults, func(f Fault) bool {
		return (f.Worker == worker || f.Worker == "" || worker == "") && slices.Contains(kinds, f.Kind) &&
			f.From.Before(to) && f.To.Add(v.limits.Race).After(from)
	})
}

// late reports whether the attempt may have come long after it was sent.
func (v *view) late(rc *Receipt, sent time.Time) bool {
	return v.struck(rc.Worker, sent, rc.Received, "pause", "nats-partition", "nats-restart")
}

// lost reports whether what the attempt wrote may not have arrived.
func (v *view) lost(rc *Receipt) bool {
	return v.struck(rc.Worker, rc.Received, rc.Ended, "rst", "refuse", "pause", "nats-partition", "nats-restart")
}

// oneTerminal is I1: each request ends in exactly one of a good end, an error
// event, an HTTP error, or the client's leaving. A plain body that broke has no
// other way to say so than a broken connection.
func oneTerminal(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		r := &v.Requests[i]
		if r.Done+r.Errors > 1 || r.Late > 0 {
			broken("%s: %d [DONE], %d error events, %d events behind the end", r.ID, r.Done, r.Errors, r.Late)
			continue
		}
		if !r.Canceled.IsZero() {
			continue
		}
		switch {
		case r.Status == 0:
			broken("%s: no answer", r.ID)
		case r.Status != 200:
			if r.Status < 400 {
				broken("%s: status %d", r.ID, r.Status)
			}
		case r.Stream && r.Done+r.Errors == 0:
			broken("%s: the stream ended without a terminal (broken: %v)", r.ID, r.Broken)
		case r.Stream && r.Broken:
			broken("%s: the connection broke behind the terminal", r.ID)
		case !r.Stream && !r.Whole && !r.Broken:
			broken("%s: half a body that looks whole", r.ID)
		}
	}
}

// noReplay is I2: no attempt begins once the client has a byte of the answer, be it an
// error's. Those that the answer's head names had begun; an engine may see them late,
// and one that stood still, or that the broker could not reach, long after.
func noReplay(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		r := &v.Requests[i]
		if r.FirstByte.IsZero() {
			continue
		}
		for _, rc := range v.receipts[r.ID] {
			if rc.Received.After(r.FirstByte.Add(v.leeway(r))) && !r.names(rc.Attempt) && !v.late(rc, r.Sent) {
				broken("%s: attempt %s at %s %v behind the first byte", r.ID, rc.Attempt, rc.Worker, rc.Received.Sub(r.FirstByte))
			}
		}
	}
}

// leeway is how much later than the answer's head an attempt may come that had begun
// before: where the head names none, the gateway has answered, while forwarders may
// have been at work.
func (v *view) leeway(r *Request) time.Duration {
	if len(r.Tries) == 0 {
		return v.limits.Race
	}
	return 0
}

// names reports whether the head of the answer says that the attempt had begun: by its
// name, or by that of a decode leg with whose room a prefill leg goes.
func (r *Request) names(attempt string) bool {
	return slices.ContainsFunc(r.Tries, func(t Try) bool {
		return attempt == fmt.Sprintf("%s/%s%d", r.ID, t.Leg, t.N) || t.Leg == "d" && attempt == fmt.Sprintf("%s/p%d", r.ID, t.N)
	})
}

// oneCompletion is I3: at most one attempt of a request runs to its end. The
// prefill leg of a pair may be repeated: it computes nothing but a cache. And an
// engine cannot know that the network took the answer that it has written: what
// is lost before its first byte may be asked again of a mixed worker, but a
// decode leg that was written is never repeated. Nor does an engine know that it was
// given up before it is told.
func oneCompletion(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		n := 0
		for _, rc := range v.receipts[v.Requests[i].ID] {
			if rc.Complete && rc.Leg != "prefill" && (rc.Leg == "decode" || !v.lost(rc) && !v.givenUp(&v.Requests[i], rc)) {
				n++
			}
		}
		if n > 1 {
			broken("%s: %d completed attempts", v.Requests[i].ID, n)
		}
	}
}

// givenUp reports whether the forwarder gave the attempt up for another one, and it
// ended before the engine had to know.
func (v *view) givenUp(r *Request, rc *Receipt) bool {
	switch r.why(rc) {
	case "blameless", "aborted", "idle_timeout", "first_token_timeout":
	default:
		return false
	}
	return slices.ContainsFunc(v.receipts[r.ID], func(next *Receipt) bool {
		return next.Received.After(rc.Received) && rc.Ended.Before(next.Received.Add(v.limits.Abort))
	})
}

// oneGeneration is I4: the text is the beginning of one attempt's tokens, in their
// order, and all of them where it ended well. The attempt is one that an engine knows.
func oneGeneration(v *view, broken func(string, ...any)) {
	for i := range v.Requests {
		r := &v.Requests[i]
		attempt, tokens := "", strings.Fields(r.Text)
		if r.OK() && r.Want > 0 && len(tokens) != r.Want {
			broken("%s: a good answer of %d tokens, %d were asked for", r.ID, len(tokens), r.Want)
		}
		for k, token := range tokens {
			at := strings.LastIndexByte(token, '/')
			if at < 0 {
				broken("%s: token %q is no stamp", r.ID, token)
				break
			}
			if k == 0 {
				attempt = token[:at]
			}
			n, err := strconv.Atoi(token[at+1:])
			if token[:at] != attempt || err != nil || n != k || !strings.HasPrefix(attempt, r.ID+"/") {
				broken("%s: token %d is %q, want number %d of attempt %q", r.ID, k, token, k, attempt)
				break
			}
		}
		if attempt != "" && !v.knows(r, attempt) {
			broken("%s: no engine knows of attempt %s, whose tokens came", r.ID, attempt)
		}
	}
}

// knows reports whether some engine has a receipt of the attempt, or may have lost
// it, for it was killed.
func (v *view) knows(r *Request, attempt string) bool {
	return v.struck("", r.Sent, r.End, "kill") ||
		slices.ContainsFunc(v.receipts[r.ID], func(rc *Receipt) bool { return rc.Attempt == attempt })
}

// nothingHeld is I6: when all is quiet nothing is in flight, queued or reserved.
func nothingHeld(v *view, broken func(string, ...any)) {
	for _, g := range v.Gauges {
		if g.Value != 0 {
			broken("%s: %s is %v", g.Source, g.Name, g.Value)
		}
	}
}

// allCounted is I7: the forwarders' outcomes sum up to the requests they were
// given. Of a request whose client left nobody can tell how far it had come.
func allCounted(v *view, broken func(string, ...any)) {
	certain, perhaps := 0, 0
	for i := range v.Requests {
		r := &v.Requests[i]
		switch {
		case r.Forwarded:
			certain++
		case !r.Canceled.IsZero(), r.Status == 0:
			perhaps++
		}
	}
	if n := int(v.Counted); n < certain || n > certain+perhaps {
		broken("the outcomes sum up to %d; %d requests were answered by forwarders, and %d may have been", n, certain, perhaps)
	}
}
