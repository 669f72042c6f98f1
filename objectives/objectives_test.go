package objectives

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func at(minute int) time.Time { return time.Unix(int64(60*minute), 0) }

func rewrite(name string, minute int, rules ...Rule) Rewrite {
	return Rewrite{Name: name, Created: at(minute), Rules: rules}
}

func to(model string) []Target { return []Target{{Model: model, Weight: 1}} }

func TestWhichRewriteCounts(t *testing.T) {
	for _, tc := range []struct {
		name     string
		rewrites []Rewrite
		model    string
		want, by string
	}{
		{"none is there", nil, "m", "", ""},
		{"none is for the name", []Rewrite{rewrite("a", 1, Rule{[]string{"n"}, to("x")})}, "m", "", ""},
		{"one is for the name", []Rewrite{rewrite("a", 1, Rule{[]string{"n", "m"}, to("x")})}, "m", "x", "a"},
		{"one is for all names", []Rewrite{rewrite("a", 1, Rule{nil, to("x")})}, "m", "x", "a"},
		{"an exact one beats an older generic one", []Rewrite{
			rewrite("generic", 1, Rule{nil, to("x")}), rewrite("exact", 2, Rule{[]string{"m"}, to("y")}),
		}, "m", "y", "exact"},
		{"the oldest wins, whatever the order", []Rewrite{
			rewrite("young", 3, Rule{[]string{"m"}, to("x")}), rewrite("old", 1, Rule{[]string{"m"}, to("y")}), rewrite("middle", 2, Rule{[]string{"m"}, to("z")}),
		}, "m", "y", "old"},
		{"of one age, the name decides", []Rewrite{
			rewrite("b", 1, Rule{nil, to("x")}), rewrite("a", 1, Rule{nil, to("y")}),
		}, "m", "y", "a"},
		{"within one, the first rule", []Rewrite{rewrite("a", 1, Rule{[]string{"m"}, to("x")}, Rule{[]string{"m"}, to("y")})}, "m", "x", "a"},
		{"a rule without targets is void", []Rewrite{rewrite("a", 1, Rule{[]string{"m"}, nil}, Rule{[]string{"m"}, to("y")})}, "m", "y", "a"},
		{"so is a target without a name", []Rewrite{rewrite("a", 1, Rule{[]string{"m"}, []Target{{"", 1}}})}, "m", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b Book
			b.Set(nil, tc.rewrites)
			got, by, ok := b.Rewritten(tc.model, 0.5)
			if got != tc.want || by != tc.by || ok != (tc.want != "") {
				t.Errorf("got %q by %q (%t), want %q by %q", got, by, ok, tc.want, tc.by)
			}
		})
	}
}

func TestWeightsAreShares(t *testing.T) {
	for _, tc := range []struct {
		name    string
		targets []Target
		want    map[string]float64
	}{
		{"one to three", []Target{{"a", 1}, {"b", 3}}, map[string]float64{"a": 0.25, "b": 0.75}},
		{"none has a weight", []Target{{"a", 0}, {"b", 0}}, map[string]float64{"a": 0.5, "b": 0.5}},
		{"one has no weight", []Target{{"a", 0}, {"b", 2}}, map[string]float64{"a": 0, "b": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var b Book
			b.Set(nil, []Rewrite{rewrite("r", 1, Rule{nil, tc.targets})})
			rng := rand.New(rand.NewPCG(1, 2))
			const n = 20000
			got := map[string]float64{}
			for range n {
				m, _, _ := b.Rewritten("m", rng.Float64())
				got[m] += 1.0 / n
			}
			for m, want := range tc.want {
				if math.Abs(got[m]-want) > 0.02 {
					t.Errorf("%s got a share of %.3f, want %.2f", m, got[m], want)
				}
			}
			if m, _, _ := b.Rewritten("m", math.Nextafter(1, 0)); m != "b" {
				t.Errorf("the highest draw gives %q, want the last", m)
			}
		})
	}
}

func TestPriorities(t *testing.T) {
	var b Book
	if _, ok := b.Priority("x"); ok {
		t.Error("an empty book has an objective")
	}
	if _, ok := (*Book)(nil).Priority("x"); ok {
		t.Error("no book has an objective")
	}
	if _, _, ok := (*Book)(nil).Rewritten("x", 0); ok {
		t.Error("no book has a rewrite")
	}
	b.Set([]Objective{{"batch", -5}, {"chat", 10}, {"chat", 99}}, nil)
	for name, want := range map[string]int{"batch": -5, "chat": 10} {
		if got, ok := b.Priority(name); !ok || got != want {
			t.Errorf("%s has priority %d (%t), want %d", name, got, ok, want)
		}
	}
	b.Set(nil, nil)
	if _, ok := b.Priority("chat"); ok {
		t.Error("an objective that is gone counts")
	}
}

func TestReadersSeeWholeStates(t *testing.T) {
	var b Book
	b.Set(nil, []Rewrite{rewrite("r0", 1, Rule{nil, to("r0")})})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				if m, by, _ := b.Rewritten("m", 0); m != by {
					t.Errorf("model %q by rewrite %q", m, by)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 1000 {
		name := "r" + string(rune('0'+i%10))
		b.Set(nil, []Rewrite{rewrite(name, 1, Rule{nil, to(name)})})
	}
	close(stop)
	wg.Wait()
}
