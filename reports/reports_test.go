package reports_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/reports"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func pick(id string, n uint64, prompt, miss int) reports.Pick {
	return reports.Pick{Ref: reports.Ref{Picker: id, Pick: n}, Prompt: prompt, Miss: miss, Added: prompt}
}

func collect(t *testing.T, tally *reports.Tally, now time.Time) *reports.Report {
	t.Helper()
	r := new(reports.Report)
	if !tally.Collect(now, r) {
		t.Fatal("nothing to tell")
	}
	return r
}

func TestAPicksHeaderComesBack(t *testing.T) {
	p := pick("epp-0.a1", 7, 1200, 300)
	p.Added = 800
	text := string(p.Append(nil))
	if want := "epp-0.a1;n=7;p=1200;m=300;a=800"; text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if got := reports.ParsePick(text); got != p {
		t.Errorf("%+v", got)
	}
	for value, want := range map[string]reports.Pick{
		"":                               {},
		"a b":                            {},
		strings.Repeat("x", 129):         {},
		"a;n=1;p=-3;m=x;q=9;a":           {Ref: reports.Ref{Picker: "a", Pick: 1}},
		" a ; n=2; p=99999999999999999 ": {Ref: reports.Ref{Picker: "a", Pick: 2}, Prompt: 1 << 26},
	} {
		if got := reports.ParsePick(value); got != want {
			t.Errorf("%q: %+v, want %+v", value, got, want)
		}
	}
}

// A request's life: queued, first token, end, as its picker and others see it.
func TestAFlightIsCountedWhereItIs(t *testing.T) {
	tally := reports.NewTally(reports.DefaultConfig(), "f")
	collect(t, tally, t0)
	f := tally.Open(pick("A", 1, 100, 40))
	f.At(t0, "w1", -1, true)
	waits := reports.Load{Requests: 1, Waiting: 1, PrefillTokens: 40, ActiveTokens: 100}
	r := collect(t, tally, t0)
	want := []reports.Worker{{ID: "w1", Rank: -1, Total: waits, ByPicker: map[string]reports.Load{"A": waits}}}
	if !reflect.DeepEqual(r.Workers, want) || r.Full {
		t.Errorf("waiting: %+v", r.Workers)
	}
	f.First(t0.Add(10 * time.Millisecond))
	r = collect(t, tally, t0)
	if got := r.Workers[0].Total; got != (reports.Load{Requests: 1, ContextTokens: 100, ActiveTokens: 100}) {
		t.Errorf("decoding: %+v", got)
	}
	if w := r.Workers[0].Work; w.Millis != 10 || w.Tokens < 40 || w.Tokens > 41 {
		t.Errorf("work: %+v", w)
	}
	if len(r.First) != 1 || r.First[0] != (reports.Ref{Picker: "A", Pick: 1}) {
		t.Errorf("first tokens: %+v", r.First)
	}
	f.Close(t0, &reports.Done{RequestID: "r", Status: 200})
	f.Close(t0, &reports.Done{RequestID: "again"})
	f.Leave(t0)
	r = collect(t, tally, t0)
	if !r.Workers[0].Total.IsZero() || len(r.Workers[0].ByPicker) != 0 || len(r.Done) != 1 || r.Done[0].RequestID != "r" || r.Done[0].Pick != 1 {
		t.Errorf("ended: %+v, %+v", r.Workers, r.Done)
	}
	if tally.Collect(t0, new(reports.Report)) {
		t.Error("a report without news")
	}
	tally.Refresh()
	if r = collect(t, tally, t0.Add(time.Second)); !r.Full || len(r.Done) != 1 {
		t.Errorf("a full report repeats what ended a moment ago, for who missed it: %+v", r)
	}
	tally.Refresh()
	if r = collect(t, tally, t0.Add(time.Minute)); len(r.Done) != 0 {
		t.Error("and not for ever")
	}
	tally.Refresh()
	if r = collect(t, tally, t0.Add(time.Hour)); len(r.Workers) != 1 {
		t.Error("the last report of an idle worker still names it")
	}
	tally.Refresh()
	if r = collect(t, tally, t0.Add(time.Hour)); len(r.Workers) != 0 {
		t.Error("an idle worker is told of for ever")
	}
}

func TestAFailOverIsItsForwardersOwn(t *testing.T) {
	tally := reports.NewTally(reports.DefaultConfig(), "f")
	f := tally.Open(pick("A", 1, 100, 100))
	f.At(t0, "w1", -1, true)
	f.Moved(t0, "m1@w1;refused")
	f.At(t0, "w2", -1, false)
	r := collect(t, tally, t0)
	by := map[string]int{}
	for _, w := range r.Workers {
		by[w.ID] = w.Total.Requests
		if len(w.ByPicker) != 0 {
			t.Errorf("%s is under the picker's name: %+v", w.ID, w.ByPicker)
		}
	}
	if by["w1"] != 0 || by["w2"] != 1 || len(r.Done) != 1 || !r.Done[0].Moved {
		t.Errorf("%v, %+v", by, r.Done)
	}
}

func TestReportsGoOutSoonAndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := reports.DefaultConfig()
		tally := reports.NewTally(cfg, "f")
		var at []time.Duration
		var full []bool
		began := time.Now()
		go func() {
			_ = tally.Run(t.Context(), func(r *reports.Report) {
				at, full = append(at, time.Since(began)), append(full, r.Full)
			})
		}()
		time.Sleep(500 * time.Millisecond)
		for range 100 { // ten a millisecond
			tally.Open(pick("A", 1, 1, 1)).At(time.Now(), "w", -1, true)
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(cfg.Heartbeat)
		synctest.Wait()
		want := "[0s 500ms 550ms 2.5s] [true false false true]"
		if got := fmt.Sprint(at, full); got != want {
			t.Errorf("reports at %s, want %s", got, want)
		}
	})
}

// The beat is slow while nothing happens, says so, and is on the wall clock's grid.
// What has just ended is told again before it slows down.
func TestAnIdleForwarderReportsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := reports.DefaultConfig()
		tally := reports.NewTally(cfg, "f")
		time.Sleep(130 * time.Millisecond) // off the grid
		var at []time.Time
		var beats []time.Duration
		ends := 0
		go func() {
			_ = tally.Run(t.Context(), func(r *reports.Report) {
				at, beats, ends = append(at, time.Now()), append(beats, r.Beat), ends+len(r.Done)
			})
		}()
		time.Sleep(41 * time.Second)
		synctest.Wait()
		if len(at) != 5 {
			t.Fatalf("%d reports of an idle forwarder in 41 s, want one at once and one every 10 s", len(at))
		}
		for i := range at {
			if beats[i] != cfg.IdleHeartbeat {
				t.Errorf("report %d promises the next within %v", i, beats[i])
			}
			if i > 0 && (at[i].Sub(at[i-1]) > beats[i-1] || at[i] != at[i].Truncate(500*time.Millisecond)) {
				t.Errorf("report %d came at %v, after %v", i, at[i], at[i].Sub(at[i-1]))
			}
		}
		f := tally.Open(pick("A", 1, 1, 1))
		f.At(time.Now(), "w", -1, true)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if n := len(at); n < 5+14 || n > 5+17 || beats[n-1] != cfg.Heartbeat {
			t.Errorf("%d reports in 30 s with a request, the last of which promises %v", n-5, beats[n-1])
		}
		f.Close(time.Now(), &reports.Done{})
		time.Sleep(time.Minute)
		synctest.Wait()
		if ends < 5 || beats[len(beats)-1] != cfg.IdleHeartbeat {
			t.Errorf("the end is told %d times, and the last report promises %v", ends, beats[len(beats)-1])
		}
	})
}

// sink remembers what a board tells.
type sink struct {
	others map[string]reports.Load
	rates  map[string]float64
	first  []uint64
	done   []uint64
	news   []string // of others' picks
}

func newSink() *sink { return &sink{others: map[string]reports.Load{}, rates: map[string]float64{}} }

func (s *sink) Others(worker string, rank int, o reports.Other) {
	k := fmt.Sprint(worker, rank)
	s.others[k], s.rates[k] = o.Load, o.Rate
}

func (s *sink) Sent(x *reports.Sent, _ time.Time) {
	s.news = append(s.news, fmt.Sprintf("%s %d to %s/%d: %d blocks", x.Picker, x.Pick, x.Worker, x.Rank, x.Trail.Blocks))
}

func (s *sink) Settled(ref reports.Ref, began bool, _ time.Time) {
	s.news = append(s.news, fmt.Sprintf("%s %d settled %v", ref.Picker, ref.Pick, began))
}
func (s *sink) First(pick uint64, _ time.Time)    { s.first = append(s.first, pick) }
func (s *sink) Done(d *reports.Done, _ time.Time) { s.done = append(s.done, d.Pick) }
func (s *sink) requests(worker string) (n int)    { return s.others[worker+"-1"].Requests }
func report(src string, seq uint64) *reports.Report {
	return &reports.Report{Source: src, Seq: seq, Beat: time.Second}
}

func loaded(id string, total, a, b int) reports.Worker {
	return reports.Worker{ID: id, Rank: -1, Total: reports.Load{Requests: total}, ByPicker: map[string]reports.Load{"A": {Requests: a}, "B": {Requests: b}}}
}

// Whoever can report must not be able to fill the memory, nor to keep those out who
// are known.
func TestABoardKeepsABoundedNumberOfForwardersAndWorkers(t *testing.T) {
	s := newSink()
	b := reports.NewBoard("A", s)
	known := report("known", 1)
	known.Workers = []reports.Worker{loaded("w", 3, 0, 0)}
	b.Take(t0, reports.ViaBroker, known)
	for i := range 20 {
		flood := report("liar", uint64(i+1))
		for j := range 20_000 {
			flood.Workers = append(flood.Workers, reports.Worker{ID: fmt.Sprint(i, "-", j), Rank: -1})
		}
		b.Take(t0, reports.ViaBroker, flood)
	}
	for i := range 20_000 {
		b.Take(t0, reports.ViaBroker, report(fmt.Sprint("liar", i), 1))
	}
	if n := b.Sources(); n != 1<<14 {
		t.Errorf("%d forwarders are kept", n)
	}
	if n := len(s.others); n != 1<<18 {
		t.Errorf("%d workers are kept", n)
	}
	known.Seq, known.Workers = 2, []reports.Worker{loaded("w", 4, 0, 0)}
	if b.Take(t0, reports.ViaBroker, known); s.requests("w") != 4 {
		t.Errorf("a known forwarder says 4, and counts for %d", s.requests("w"))
	}
	b.Tick(t0.Add(time.Minute))
	late := report("late", 1)
	late.Workers = []reports.Worker{loaded("w2", 5, 0, 0)}
	if b.Take(t0.Add(time.Minute), reports.ViaBroker, late); s.requests("w2") != 5 || b.Sources() != 1 {
		t.Errorf("behind the flood a new forwarder's 5 count for %d; %d are kept", s.requests("w2"), b.Sources())
	}
}

func TestABoardSumsWhatIsNotOurs(t *testing.T) {
	s := newSink()
	b := reports.NewBoard("A", s)
	r := report("f1", 1)
	r.Workers = []reports.Worker{loaded("w1", 10, 4, 5)}
	b.Take(t0, reports.ViaBroker, r)
	if s.requests("w1") != 6 {
		t.Errorf("others have %d, want 10 - 4", s.requests("w1"))
	}
	r = report("f2", 9) // another forwarder sends to the same worker
	r.Workers = []reports.Worker{loaded("w1", 3, 1, 0)}
	b.Take(t0, reports.ViaBroker, r)
	if s.requests("w1") != 8 {
		t.Errorf("others have %d of two forwarders, want 6 + 2", s.requests("w1"))
	}
	if n, _, ok := b.Mine("w1", -1, t0); n != 5 || !ok {
		t.Errorf("ours: %d, %v", n, ok)
	}
	r = report("f1", 1) // the same by another way
	r.Workers = []reports.Worker{loaded("w1", 99, 0, 0)}
	b.Take(t0, reports.ViaHTTP, r)
	if s.requests("w1") != 8 || !b.HeardBy(reports.ViaHTTP, "w1", t0) {
		t.Errorf("an old report counts: %d", s.requests("w1"))
	}
	r = report("f1", 2)
	r.Full = true // and names no worker
	b.Take(t0, reports.ViaBroker, r)
	if s.requests("w1") != 2 {
		t.Errorf("what a full report does not name is over: %d", s.requests("w1"))
	}
}

func TestABoardForgetsWhoIsSilent(t *testing.T) {
	s := newSink()
	b := reports.NewBoard("A", s)
	for i, src := range []string{"f1", "f2"} {
		r := report(src, 1)
		r.Workers = []reports.Worker{loaded("w1", i+1, 0, 0)}
		r.Pickers = []string{"A", "B"}
		b.Take(t0, reports.ViaHTTP, r)
	}
	if b.Replicas(t0) != 2 || b.Saw("C", t0) != true || b.Saw("C", t0) != false || b.Replicas(t0) != 3 {
		t.Errorf("replicas: %v", b.Pickers())
	}
	later := t0.Add(11 * time.Second)
	r := report("f2", 2)
	r.Workers = []reports.Worker{loaded("w1", 2, 0, 0)}
	b.Take(later, reports.ViaHTTP, r)
	b.Tick(later)
	r.Seq = 3
	b.Take(later, reports.ViaHTTP, r)
	if s.requests("w1") != 2 || b.Sources() != 1 || b.Replicas(later) != 1 {
		t.Errorf("%d requests, %d sources, %d replicas", s.requests("w1"), b.Sources(), b.Replicas(later))
	}
	if b.Heard("w1", later.Add(4*time.Second)) {
		t.Error("a worker that nobody speaks for is heard")
	}
}

func TestABoardPassesOnOurEndsAlone(t *testing.T) {
	s := newSink()
	b := reports.NewBoard("A", s)
	r := report("f", 1)
	r.First = []reports.Ref{{Picker: "A", Pick: 3}, {Picker: "B", Pick: 4}}
	r.Done = []reports.Done{{Ref: reports.Ref{Picker: "B", Pick: 1}}, {Ref: reports.Ref{Picker: "A", Pick: 2}}}
	b.Take(t0, reports.ViaBroker, r)
	if fmt.Sprint(s.first, s.done) != "[3] [2]" {
		t.Errorf("first %v, done %v", s.first, s.done)
	}
}

// One worker is ten times slower; a worker without samples has the fleet's mean.
func TestSpeedIsLearnedWhereAllRequestsAreSeen(t *testing.T) {
	s := newSink()
	b := reports.NewBoard("A", s)
	for round := range uint64(2) {
		r := report("f", round+1)
		for i, ms := range []float64{10_000, 10_000, 100_000} {
			w := loaded(fmt.Sprint("w", i), 0, 0, 0)
			w.Work = reports.Work{Tokens: 160_000, Millis: ms}
			r.Workers = append(r.Workers, w)
		}
		r.Workers = append(r.Workers, loaded("new", 0, 0, 0))
		b.Take(t0, reports.ViaBroker, r)
	}
	mean := 3 * 160_000.0 / 120_000
	if got := s.rates["new-1"]; got != mean {
		t.Errorf("a new worker's rate is %g, want the mean %g", got, mean)
	}
	if fast, slow := s.rates["w0-1"], s.rates["w2-1"]; fast < 12 || fast > 16 || slow < 1.6 || slow > 2 {
		t.Errorf("rates %g and %g, want some 16 and 1.6, drawn to the mean", fast, slow)
	}
}

// An answer in one piece comes when all of it has been decoded: taken for the time
// of a prefill, it would make its worker look slow.
func TestAnAnswerInOnePieceTellsNoSpeed(t *testing.T) {
	tally := reports.NewTally(reports.DefaultConfig(), "f")
	for i, whole := range []bool{false, true} {
		f := tally.Open(pick("A", uint64(i+1), 1000, 1000))
		f.At(t0, "w1", -1, true)
		if whole {
			f.Whole()
		}
		f.First(t0.Add(time.Second))
		f.Close(t0.Add(time.Second), &reports.Done{})
		r := collect(t, tally, t0.Add(time.Second))
		if ms := r.Workers[0].Work.Millis; ms != 1000 {
			t.Errorf("after %d answers: %g ms of prefill, want 1000", i+1, ms)
		}
	}
}

func TestConfigFaults(t *testing.T) {
	if err := reports.DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*reports.Config){
		"mode":      func(c *reports.Config) { c.Mode = "kafka" },
		"interval":  func(c *reports.Config) { c.Interval = 0 },
		"heartbeat": func(c *reports.Config) { c.Heartbeat = time.Millisecond },
		"idle":      func(c *reports.Config) { c.IdleHeartbeat = time.Hour },
		"warm":      func(c *reports.Config) { c.WarmTimeout = -1 },
	} {
		c := reports.DefaultConfig()
		if change(&c); c.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// A pick's trail goes from the header through the forwarder's report to the other
// pickers, once, and only from where the picker wanted the request.
func TestTheOtherPickersHearOfAPick(t *testing.T) {
	p := pick("A", 7, 100, 100)
	p.Trail = reports.Trail{Size: 16, Blocks: 75, N: 3, Hashes: [reports.MaxMarks]uint64{1 << 63, 2, 3}}
	p = reports.ParsePick(string(p.Append(nil)))
	if p.Trail.Blocks != 75 || p.Trail.Hashes != [reports.MaxMarks]uint64{1 << 63, 2, 3} {
		t.Fatalf("by the header: %+v", p.Trail)
	}
	for name, theirs := range map[string]bool{"where its picker wants it": true, "elsewhere": false} {
		tally, s := reports.NewTally(reports.DefaultConfig(), "f"), newSink()
		b, own := reports.NewBoard("B", s), newSink()
		mine := reports.NewBoard("A", own)
		f := tally.Open(p)
		f.At(t0, "w1", 2, theirs)
		f.At(t0, "w1", 2, theirs) // its forwarder tries again
		for range 2 {
			r := collect(t, tally, t0)
			b.Take(t0, reports.ViaBroker, r)
			mine.Take(t0, reports.ViaBroker, r)
			f.First(t0)
		}
		want := "[A 7 to w1/2: 75 blocks A 7 settled true]"
		if !theirs {
			want = "[]"
		}
		if got := fmt.Sprint(s.news); got != want || len(own.news) > 0 {
			t.Errorf("%s: B hears %s, want %s; A hears %v of itself", name, got, want, own.news)
		}
	}
}

func TestTrailsThatAreNone(t *testing.T) {
	long := pick(strings.Repeat("x", reports.MaxID), 1<<40, 1<<25, 1<<25)
	long.Trail = reports.Trail{Size: 16, Blocks: 1000, N: reports.MaxMarks}
	if got := reports.ParsePick(string(long.Append(nil))); got.Picker != long.Picker || got.Pick != 1<<40 || got.Trail.N != 0 {
		t.Errorf("beside a long ID a trail is left out, and the rest is not: %+v", got)
	}
	for _, tail := range []string{";s=16;b=3;h=!!", ";s=16;b=3;h=AAAA", ";s=0;b=3;h=AAAAAAAAAAE", ";b=3;h=AAAAAAAAAAE", ";s=16;b=3;h=" + strings.Repeat("A", 90), ";h=", ";s=16;b=3"} {
		if got := reports.ParsePick("A;n=7" + tail); got.Trail.N != 0 || got.Pick != 7 {
			t.Errorf("%q: %+v", tail, got)
		}
	}
}
