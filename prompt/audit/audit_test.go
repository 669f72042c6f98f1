package audit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"pointsman/prompt"
)

// world is an auditor with a clock and a fleet that the test moves.
type world struct {
	*testing.T
	a   *Auditor
	now time.Time
	log bytes.Buffer
	reg *prometheus.Registry

	gone map[string]bool // workers and models that have left
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, now: time.Unix(1000, 0), reg: prometheus.NewPedanticRegistry(), gone: map[string]bool{}}
	there := func() (workers, models map[string]bool) {
		here := map[string]bool{}
		for _, name := range []string{"m", "a", "b", "c", "odd"} {
			here[name] = !w.gone[name]
		}
		return here, here
	}
	w.a = New(DefaultConfig(), there, slog.New(slog.NewTextHandler(&w.log, nil)), func() time.Time { return w.now })
	w.a.Loaded("m", true)
	if err := w.a.Register(w.reg); err != nil {
		t.Fatal(err)
	}
	return w
}

// report is a comparable one of a chat whose ids files made.
func (w *world) report(worker string, tokens, counted int) Report {
	return Report{
		Model: "m", Form: FormChat, Source: prompt.SourceFiles, Tokens: tokens, Began: w.now,
		Worker: worker, Counted: counted, Cached: -1,
	}
}

// see has the auditor observe n reports of a worker, with the ids of source.
func (w *world) see(n int, worker string, source prompt.Source, tokens, counted int) {
	w.Helper()
	for range n {
		rep := w.report(worker, tokens, counted)
		rep.Source = source
		w.a.Observe(rep)
	}
}

// series returns the label values of the series of name that are not 0, sorted.
func (w *world) series(name string) (out []string) {
	w.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetGauge().GetValue() == 0 && m.GetCounter().GetValue() == 0 {
				continue
			}
			out = append(out, labels(m))
		}
	}
	slices.Sort(out)
	return out
}

func labels(m *dto.Metric) string {
	var values []string
	for _, l := range m.GetLabel() {
		if l.GetValue() != "" && l.GetName() != "model" {
			values = append(values, l.GetValue())
		}
	}
	return strings.Join(values, " ")
}

func (w *world) wantSeries(name string, want ...string) {
	w.Helper()
	if got := w.series(name); !slices.Equal(got, want) {
		w.Errorf("%s: %q, want %q", name, got, want)
	}
}

// asks returns which source would be asked for the next chat.
func (w *world) asks() prompt.Source {
	w.Helper()
	c := NewChain(w.a, Link{prompt.SourceFiles, fixed{1}}, Link{prompt.SourceWorker, fixed{2}})
	r := new(prompt.Request)
	if err := r.Scan(prompt.Chat, nil, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)); err != nil {
		w.Fatal(err)
	}
	if ids, err := c.Tokenize(w.Context(), r, []uint32{9}); errors.Is(err, ErrDrifts) != (r.Source == prompt.SourceNone) || len(ids) == 0 {
		w.Fatalf("ids %v by %v, error %v", ids, r.Source, err)
	}
	return r.Source
}

// fixed is a tokenizer with one answer.
type fixed []uint32

func (f fixed) Tokenize(_ context.Context, _ *prompt.Request, dst []uint32) ([]uint32, error) {
	return append(dst, f...), nil
}

func (w *world) wantAsked(want prompt.Source) {
	w.Helper()
	if got := w.asks(); got != want {
		w.Errorf("asked %v, want %v", got, want)
	}
}

func TestAgreeingCountsAreExact(t *testing.T) {
	w := newWorld(t)
	w.see(30, "a", prompt.SourceFiles, 100, 100)
	w.see(1, "b", prompt.SourceRequest, 50, 50)
	w.wantAsked(prompt.SourceFiles)
	w.wantSeries("pointsman_audit_state", "chat exact a", "chat exact b")
	w.wantSeries("pointsman_audit_compared_total", "chat exact a", "chat exact b")
	w.wantSeries("pointsman_audit_source", "chat files")
	if n := strings.Count(w.log.String(), "new verdict"); n != 2 {
		t.Errorf("%d log lines for two workers that became exact:\n%s", n, w.log.String())
	}
}

func TestADriftingSourceIsLeftStepByStepAndComesBack(t *testing.T) {
	w := newWorld(t)
	w.see(10, "a", prompt.SourceFiles, 100, 100)
	w.see(3, "a", prompt.SourceFiles, 101, 100)
	w.wantAsked(prompt.SourceFiles)
	w.see(1, "a", prompt.SourceFiles, 101, 100)
	w.wantAsked(prompt.SourceWorker)
	w.wantSeries("pointsman_audit_state", "chat count drifting a")
	w.wantSeries("pointsman_audit_source", "chat worker")

	late := w.report("a", 101, 100) // began before the switch: no further evidence
	late.Began = w.now.Add(-time.Second)
	w.a.Observe(late)

	w.see(4, "a", prompt.SourceWorker, 102, 100)
	w.wantAsked(prompt.SourceNone)
	w.wantSeries("pointsman_audit_state", "chat drift off a")
	w.wantSeries("pointsman_audit_source", "chat none")

	w.now = w.now.Add(59 * time.Second)
	w.wantAsked(prompt.SourceNone)
	w.now = w.now.Add(time.Second) // both are on trial: the files first
	w.wantAsked(prompt.SourceFiles)
	w.see(1, "a", prompt.SourceFiles, 101, 100) // and fail it: two minutes
	w.wantAsked(prompt.SourceWorker)
	w.see(5, "a", prompt.SourceWorker, 100, 100)
	w.wantAsked(prompt.SourceWorker)
	w.wantSeries("pointsman_audit_state", "chat count drifting a")
	w.now = w.now.Add(119 * time.Second)
	w.wantAsked(prompt.SourceWorker)
	w.now = w.now.Add(time.Second)
	w.wantAsked(prompt.SourceFiles)
	w.see(4, "a", prompt.SourceFiles, 100, 100)
	w.wantSeries("pointsman_audit_state", "chat count drifting a")
	w.see(1, "a", prompt.SourceFiles, 100, 100)
	w.wantSeries("pointsman_audit_state", "chat exact a")
	w.wantAsked(prompt.SourceFiles)
	for _, text := range []string{"drifts and is not asked", "agrees with the engines again"} {
		if n := strings.Count(w.log.String(), text); n != 2 {
			t.Errorf("%q was logged %d times, want once for each source:\n%s", text, n, w.log.String())
		}
	}
	if !strings.Contains(w.log.String(), "tokens=101 engine_tokens=100") {
		t.Errorf("no lengths in the log:\n%s", w.log.String())
	}
}

func TestATrialHasFewPrompts(t *testing.T) {
	w := newWorld(t)
	w.see(4, "a", prompt.SourceFiles, 101, 100)
	w.now = w.now.Add(time.Minute)
	for range DefaultConfig().Trial {
		w.wantAsked(prompt.SourceFiles)
	}
	w.wantAsked(prompt.SourceWorker) // no answer told anything yet
	w.now = w.now.Add(time.Minute)
	w.wantAsked(prompt.SourceFiles)
}

func TestFormsAreJudgedApart(t *testing.T) {
	w := newWorld(t)
	w.see(20, "a", prompt.SourceFiles, 100, 100)
	for range 4 {
		rep := w.report("a", 99, 100) // a BOS that is forgotten
		rep.Form = FormCompletions
		w.a.Observe(rep)
	}
	w.wantAsked(prompt.SourceFiles)
	w.wantSeries("pointsman_audit_state", "chat exact a", "completions count drifting a")
	w.wantSeries("pointsman_audit_source", "chat files", "completions worker")
}

func TestOneWorkerWithAnotherTokenizerDoesNotCostTheFleetItsOwn(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		w.see(1, "a", prompt.SourceFiles, 100, 100)
		w.see(1, "b", prompt.SourceFiles, 100, 100)
		w.see(1, "odd", prompt.SourceFiles, 100, 93)
	}
	w.wantAsked(prompt.SourceFiles)
	w.wantSeries("pointsman_audit_state", "chat count drifting odd", "chat exact a", "chat exact b")
}

func TestDriftInAPartOfAllWorkersRequestsIsTheSources(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		for _, worker := range []string{"a", "b", "c"} {
			w.see(2, worker, prompt.SourceFiles, 100, 100)
			w.see(1, worker, prompt.SourceFiles, 100, 93)
		}
	}
	w.wantAsked(prompt.SourceWorker)
}

func TestWhatIsNotComparableIsCountedAndProvesNothing(t *testing.T) {
	w := newWorld(t)
	for _, why := range []Skip{SkipMultimodal, SkipList, SkipChoices, SkipTruncated, SkipPair, SkipApprox, SkipNoUsage} {
		for range 30 {
			rep := w.report("a", 1, 1000)
			rep.Skip = why
			w.a.Observe(rep)
		}
	}
	w.wantAsked(prompt.SourceFiles)
	w.wantSeries("pointsman_audit_state", "chat no_usage off a")
	w.wantSeries("pointsman_audit_compared_total")
	w.wantSeries("pointsman_audit_skipped_total",
		"chat approximated a", "chat choices a", "chat list a", "chat multimodal a", "chat no_usage a", "chat pair a", "chat truncated a")
	w.see(1, "a", prompt.SourceFiles, 100, 100)
	w.wantSeries("pointsman_audit_state", "chat exact a")
	for range DefaultConfig().Window { // what was exact once is not claimed for ever
		rep := w.report("a", 1, 1000)
		rep.Skip = SkipApprox
		w.a.Observe(rep)
	}
	w.wantSeries("pointsman_audit_state", "chat approximated off a")
}

func TestHitsThatDifferShow(t *testing.T) {
	hit := func(w *world, n, foresaw, found int) {
		for range n {
			rep := w.report("a", 1000, 1000)
			rep.Hit, rep.Cached = foresaw, found
			w.a.Observe(rep)
		}
	}
	w := newWorld(t)
	hit(w, 30, 0, -1) // an engine that reports none: nothing to compare
	w.wantSeries("pointsman_audit_hits_total")
	hit(w, 20, 512, 496)
	w.wantSeries("pointsman_audit_hits_total", "chat agree a")
	w.wantSeries("pointsman_audit_state", "chat exact a")
	hit(w, 10, 512, -1) // none of an engine that reports them is 0
	w.wantSeries("pointsman_audit_state", "chat hit drifting a")
	w.wantAsked(prompt.SourceFiles)
	hit(w, 1, 0, 512)
	w.wantSeries("pointsman_audit_hits_total", "chat agree a", "chat over a", "chat under a")
}

func TestACanaryShowsAndIsLoggedOnce(t *testing.T) {
	w := newWorld(t)
	w.see(1, "a", prompt.SourceFiles, 100, 100)
	for range 3 {
		w.a.Canary("m", "a", false)
		w.a.Canary("m", "b", true)
	}
	w.wantSeries("pointsman_audit_canary", "b")
	w.wantSeries("pointsman_audit_state", "chat canary drifting a")
	if n := strings.Count(w.log.String(), "tokenizer canary is not"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, w.log.String())
	}
	w.a.Canary("m", "a", true)
	w.wantSeries("pointsman_audit_state", "chat exact a")
}

func TestNewFilesAreTrustedAgain(t *testing.T) {
	w := newWorld(t)
	w.see(4, "a", prompt.SourceFiles, 101, 100)
	w.wantAsked(prompt.SourceWorker)
	w.a.Loaded("m", true)
	w.wantAsked(prompt.SourceFiles)
	w.wantSeries("pointsman_audit_state", "chat exact a")
}

func TestWithoutFilesAWorkersDriftMeansNone(t *testing.T) {
	w := newWorld(t)
	w.a.Loaded("m", false)
	w.see(4, "a", prompt.SourceWorker, 101, 100)
	w.wantSeries("pointsman_audit_state", "chat drift off a")
	w.wantSeries("pointsman_audit_source", "chat none")
}

func TestWhoIsGoneIsForgotten(t *testing.T) {
	w := newWorld(t)
	w.see(4, "a", prompt.SourceFiles, 101, 100)
	w.see(1, "b", prompt.SourceWorker, 100, 100)
	w.a.Canary("m", "a", true)
	w.gone["a"] = true
	w.wantSeries("pointsman_audit_state", "chat count drifting b")
	w.wantSeries("pointsman_audit_canary")
	w.gone["m"] = true
	w.wantSeries("pointsman_audit_state")
	if n := len(w.a.rows) + len(w.a.trusts) + len(w.a.canaries) + len(w.a.files); n != 0 {
		t.Errorf("%d entries are kept", n)
	}
}

func TestTheBackoffGrowsToItsBoundAndFallsWhenAllIsWell(t *testing.T) {
	w := newWorld(t)
	w.see(4, "a", prompt.SourceFiles, 101, 100)
	tr := w.a.trusts[trustKey{"m", FormChat, prompt.SourceFiles}]
	for range 10 {
		w.now = w.now.Add(tr.backoff)
		w.asks()
		w.see(1, "a", prompt.SourceFiles, 101, 100)
	}
	if tr.backoff != time.Hour {
		t.Errorf("the tenth failed trial is followed by a wait of %v", tr.backoff)
	}
	w.now = w.now.Add(tr.backoff)
	w.see(5, "a", prompt.SourceFiles, 100, 100)
	w.see(20, "a", prompt.SourceFiles, 100, 100)
	if tr.drifts || tr.backoff != 0 {
		t.Errorf("drifts %t, next wait grows from %v", tr.drifts, tr.backoff)
	}
}

func TestConfigFaults(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"window":    func(c *Config) { c.Window = 0 },
		"share":     func(c *Config) { c.Share = 0 },
		"hit share": func(c *Config) { c.HitShare = 1.5 },
		"slack":     func(c *Config) { c.HitSlack = -1 },
		"retry":     func(c *Config) { c.Retry = 0 },
		"max retry": func(c *Config) { c.MaxRetry = time.Second },
		"trial":     func(c *Config) { c.Heal = c.Trial + 1 },
	} {
		c := DefaultConfig()
		if change(&c); c.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	a := New(DefaultConfig(), nil, slog.New(slog.DiscardHandler), time.Now)
	rep := Report{Model: "m", Form: FormChat, Source: prompt.SourceFiles, Tokens: 100, Counted: 100, Worker: "10.0.0.1:30000", Cached: 64, Hit: 64}
	b.ReportAllocs()
	for b.Loop() {
		rep.Began = time.Now()
		a.Observe(rep)
	}
}
