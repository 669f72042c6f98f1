package simengine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/wire"
)

// bench is a scheduler in a synctest bubble: its clock is fake.
type bench struct {
	t     *testing.T
	s     *scheduler
	begin time.Time
	done  chan struct{}
	stop  context.CancelFunc
}

// plainTime has round numbers: 10 ms a step, 10 tokens a millisecond.
func plainTime() TimeConfig {
	return TimeConfig{PrefillRate: 10_000, DecodeStep: 10 * time.Millisecond, ChunkTokens: 1000, MaxSeqs: 4, Scale: 1}
}

func newBench(t *testing.T, cfg TimeConfig, blocks int) *bench {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &bench{t: t, s: newScheduler(cfg, newCache(4, blocks), func(changes) {}), begin: time.Now(), done: make(chan struct{}), stop: cancel}
	go func() {
		defer close(b.done)
		b.s.run(ctx)
	}()
	return b
}

// close ends the scheduler; the bubble fails if it does not.
func (b *bench) close() {
	b.stop()
	<-b.done
}

// sequence makes a prompt of a family.
func (b *bench) sequence(family, prompt, out int) *sequence {
	tokens := tokensOf(family, prompt+out)
	return &sequence{
		tokens: tokens, hashes: chainHashes(1, wire.Keys{}, tokens, 4), prompt: prompt, out: out,
		notify: make(chan struct{}, 1),
	}
}

// submit queues a prompt of a family.
func (b *bench) submit(family, prompt, out int) *sequence {
	b.t.Helper()
	q := b.sequence(family, prompt, out)
	if err := b.s.submit(q); err != nil {
		b.t.Fatal(err)
	}
	return q
}

// until waits for q and returns when it ended, since the beginning.
func (b *bench) until(q *sequence) time.Duration {
	for !q.finished.Load() {
		<-q.notify
	}
	return time.Since(b.begin)
}

func TestTimeOfOneRequest(t *testing.T) {
	for _, tc := range []struct {
		name        string
		prompt, out int
		first, end  time.Duration
	}{
		{"a short prompt costs a step", 1, 1, 10100 * time.Microsecond, 10100 * time.Microsecond},
		{"a prompt costs its tokens and a step", 500, 1, 60 * time.Millisecond, 60 * time.Millisecond},
		{"each further token costs a step", 500, 5, 60 * time.Millisecond, 100 * time.Millisecond},
		{"a long prompt takes several chunks, each a step", 2500, 1, 280 * time.Millisecond, 280 * time.Millisecond},
		{"nothing to generate ends with the prompt", 500, 0, 0, 60 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, plainTime(), 10_000)
				defer b.close()
				q := b.submit(1, tc.prompt, tc.out)
				if got := b.until(q); got != tc.end {
					t.Errorf("ended after %s, want %s", got, tc.end)
				}
				if tc.out > 0 && q.first.Sub(b.begin) != tc.first {
					t.Errorf("first token after %s, want %s", q.first.Sub(b.begin), tc.first)
				}
				if got := q.produced.Load(); got != int64(tc.out) {
					t.Errorf("%d tokens, want %d", got, tc.out)
				}
			})
		})
	}
}

func TestACachedPrefixCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, plainTime(), 10_000)
		defer b.close()
		b.until(b.submit(1, 800, 1))
		b.begin = time.Now()
		q := b.submit(1, 900, 1)
		if got, want := b.until(q), 20*time.Millisecond; got != want {
			t.Errorf("100 uncached tokens took %s, want %s", got, want)
		}
		if q.cached != 800 {
			t.Errorf("%d tokens cached, want 800", q.cached)
		}
		if l := b.s.load(); l.queries != 1700 || l.hits != 800 {
			t.Errorf("counted %d hits of %d tokens, want 800 of 1700", l.hits, l.queries)
		}
	})
}

func TestOutputBlocksAreCachedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, plainTime(), 10_000)
		defer b.close()
		b.until(b.submit(1, 8, 8)) // the last token's KV is never computed
		q := b.submit(1, 40, 1)    // the conversation goes on
		b.until(q)
		if q.cached != 12 {
			t.Errorf("%d tokens cached, want 12: two prompt blocks and one of output", q.cached)
		}
	})
}

func TestDecodersShareAStepWithAPrompt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, plainTime(), 10_000)
		defer b.close()
		d := b.submit(1, 1, 3)
		time.Sleep(5 * time.Millisecond) // its first step has begun
		p := b.submit(2, 1500, 1)
		// Steps: 10.1 ms (d's prompt); 10+99.9 (d, and 999 tokens of p); 10+50.1 (d, and the rest).
		if got, want := b.until(d), 180100*time.Microsecond; got != want {
			t.Errorf("the decoder ended after %s, want %s", got, want)
		}
		if got, want := b.until(p), 180100*time.Microsecond; got != want {
			t.Errorf("the prompt ended after %s, want %s", got, want)
		}
	})
}

func TestLongContextsCostMore(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*TimeConfig)
		want time.Duration
	}{
		{"not at all by themselves", func(*TimeConfig) {}, 80 * time.Millisecond},
		{"in prefill by their position", func(c *TimeConfig) { c.Doubling = 1000 }, 80*time.Millisecond + 12500*time.Microsecond},
		{"in decode by their length", func(c *TimeConfig) { c.ContextCost = 10 * time.Microsecond }, 80*time.Millisecond + (500+501)*10*time.Microsecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := plainTime()
				tc.edit(&cfg)
				b := newBench(t, cfg, 10_000)
				defer b.close()
				if got := b.until(b.submit(1, 500, 3)); got != tc.want {
					t.Errorf("took %s, want %s", got, tc.want)
				}
			})
		})
	}
}

func TestSlowerWithMoreDecoders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := plainTime()
		cfg.PerDecoder = time.Millisecond
		b := newBench(t, cfg, 10_000)
		defer b.close()
		b.s.mu.Lock() // both arrive before the first step
		x, y := b.sequence(1, 10, 3), b.sequence(2, 10, 3)
		b.s.waiting = append(b.s.waiting, x, y)
		b.s.mu.Unlock()
		signal(b.s.wake)
		b.until(x)
		// A step for both prompts (12 ms), two for two decoders (12 ms each).
		if got, want := b.until(y), 36*time.Millisecond; got != want {
			t.Errorf("ended after %s, want %s", got, want)
		}
	})
}

func TestSlotsAreGivenInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := plainTime()
		cfg.MaxSeqs = 1
		b := newBench(t, cfg, 10_000)
		defer b.close()
		first, second, third := b.submit(1, 100, 2), b.submit(2, 100, 2), b.submit(3, 100, 2)
		synctest.Wait()
		if l := b.s.load(); l.running != 1 || l.waiting != 2 {
			t.Errorf("%d run and %d wait, want 1 and 2", l.running, l.waiting)
		}
		for i, q := range []*sequence{first, second, third} {
			if got, want := b.until(q), time.Duration(i+1)*30*time.Millisecond; got != want {
				t.Errorf("sequence %d ended after %s, want %s", i+1, got, want)
			}
		}
		if l := b.s.load(); l.running != 0 || l.waiting != 0 || l.used != 0 {
			t.Errorf("after all: %+v", l)
		}
	})
}

func TestAdmissionWaitsForMemoryAndIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, plainTime(), 100) // 400 tokens
		defer b.close()
		big, bigger, small := b.submit(1, 298, 2), b.submit(2, 298, 2), b.submit(3, 2, 2)
		synctest.Wait()
		if l := b.s.load(); l.running != 1 || l.waiting != 2 || l.used != 75 {
			t.Errorf("%d run, %d wait, %d blocks used; want 1, 2 and 75: the small one may not overtake", l.running, l.waiting, l.used)
		}
		first := b.until(big)
		b.until(small)
		if !bigger.started.After(b.begin.Add(first - time.Millisecond)) {
			t.Errorf("the second was admitted after %s, before the first ended at %s", bigger.started.Sub(b.begin), first)
		}
		if small.started.Before(bigger.started) {
			t.Error("the small one overtook the one before it")
		}
		b.until(bigger)
	})
}

func TestASequenceThatNeverFitsIsRefused(t *testing.T) {
	s := newScheduler(plainTime(), newCache(4, 10), func(changes) {})
	for _, tc := range []struct {
		prompt, out int
		ok          bool
	}{{36, 4, true}, {37, 4, false}, {1, 1000, false}} {
		err := s.submit(&sequence{prompt: tc.prompt, out: tc.out})
		if (err == nil) != tc.ok {
			t.Errorf("%d tokens and %d more in 40: error %v", tc.prompt, tc.out, err)
		}
	}
}

func TestCancelFreesSlotAndBlocksAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after time.Duration
	}{
		{"while its prompt is computed", 50 * time.Millisecond},
		{"while it decodes", 150 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := plainTime()
				cfg.MaxSeqs = 1
				b := newBench(t, cfg, 1000)
				defer b.close()
				q, waiting := b.submit(1, 1000, 1000), b.submit(2, 10, 1)
				time.Sleep(tc.after)
				b.s.cancel(q)
				if l := b.s.load(); l.used != 0 || l.running != 0 || l.lost != 1 {
					t.Errorf("after the cancel: %+v", l)
				}
				if !q.finished.Load() {
					t.Error("the cancelled sequence is not finished")
				}
				// The step in progress ends, then the next one is served.
				if got := b.until(waiting) - tc.after; got > 130*time.Millisecond {
					t.Errorf("the next one took %s more", got)
				}
				b.s.cancel(q) // again: nothing
				b.s.cancel(waiting)
				if l := b.s.load(); l.lost != 1 || l.done != 1 {
					t.Errorf("a cancel of what has ended counted: %+v", l)
				}
			})
		})
	}
}

func TestCancelInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := plainTime()
		cfg.MaxSeqs = 1
		b := newBench(t, cfg, 1000)
		defer b.close()
		q, waiting := b.submit(1, 10, 1), b.submit(2, 10, 1)
		synctest.Wait()
		b.s.cancel(waiting)
		if l := b.s.load(); l.waiting != 0 {
			t.Errorf("%d wait, want none", l.waiting)
		}
		b.until(q)
		if waiting.produced.Load() != 0 {
			t.Error("a sequence cancelled in the queue was served")
		}
	})
}

func TestTimeScaleDividesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := plainTime()
		cfg.Scale = 100
		b := newBench(t, cfg, 10_000)
		defer b.close()
		// 10 s of simulated decoding; steps shorter than the quantum are bundled.
		got := b.until(b.submit(1, 1, 1000))
		if want := 100 * time.Millisecond; got < want-2*quantum || got > want+2*quantum {
			t.Errorf("took %s, want %s within the quantum", got, want)
		}
	})
}

func TestTheSchedulerSleepsWhileIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, plainTime(), 100)
		b.until(b.submit(1, 10, 1))
		b.begin = time.Now()
		time.Sleep(24 * time.Hour) // would take minutes if it ticked every 10 ms
		// The pause is not made up for: a request after it takes its own time.
		b.begin = time.Now()
		if got, want := b.until(b.submit(2, 100, 1)), 20*time.Millisecond; got != want {
			t.Errorf("after a pause a request took %s, want %s", got, want)
		}
		b.close()
	})
}

func TestEventsOfAStepComeTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		s := newScheduler(plainTime(), newCache(4, 1000), func(ch changes) {
			for _, e := range ch.events {
				got = append(got, fmt.Sprintf("%d blocks of %d tokens, parent %v", len(e.Hashes), len(e.Tokens), e.HasParent))
			}
		})
		done := make(chan struct{})
		go func() { defer close(done); s.run(ctx) }()
		b := &bench{t: t, s: s, begin: time.Now()}
		b.until(b.submit(1, 2000, 6))
		cancel()
		<-done
		want := []string{
			"250 blocks of 1000 tokens, parent false", "250 blocks of 1000 tokens, parent true", // two chunks
			"1 blocks of 4 tokens, parent true", // output
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("events:\n%q\nwant\n%q", got, want)
		}
	})
}
