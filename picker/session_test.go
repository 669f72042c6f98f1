package picker_test

import (
	"fmt"
	"testing"
	"time"

	"pointsman/breaker"
	"pointsman/picker"
)

// talk is a request of the conversation.
func (w *world) talk(session string) *picker.Request {
	w.Helper()
	req := w.request(fmt.Sprintf("turn%d:32", w.now.UnixNano()))
	req.Session = session
	return req
}

func sticky(affinity string) picker.Config {
	cfg := config(picker.LeastLoad, 1)
	cfg.SessionAffinity = affinity
	return cfg
}

// pairOf picks for the conversation, serves it and returns whom it went to.
func (w *world) pairOf(session string) string {
	w.Helper()
	d := w.pick(w.talk(session))
	key := d.Worker.ID
	if d.Prefill != nil {
		key = d.Prefill.ID + key
		d.PrefillDone(w.now, breaker.Success)
	}
	d.FirstToken(w.now)
	d.Done(w.now, breaker.Success)
	return key
}

func quad() (f []string) { return []string{"p1", "p2", "d1", "d2"} }

func pdWorld(t *testing.T, cfg picker.Config) *world {
	t.Helper()
	w := newWorld(t, cfg)
	for _, id := range quad() {
		w.feed.Put(leg(id, "x"))
	}
	return w
}

// pd_session_ttl_sec: sliding, 0 for 300 s, 1 to 86400.
func TestPdSessionTtlSec(t *testing.T) {
	for ttl, want := range map[time.Duration]time.Duration{0: 300 * time.Second, time.Second: time.Second, 24 * time.Hour: 24 * time.Hour} {
		cfg := sticky(picker.SessionsPD)
		cfg.SessionTTL = ttl
		w := pdWorld(t, cfg)
		first := w.pairOf("s")
		for range 20 { // it slides
			w.now = w.now.Add(want)
			if got := w.pairOf("s"); got != first {
				t.Fatalf("%v: moved from %s to %s", ttl, first, got)
			}
		}
		moved := false
		for range 40 {
			w.now = w.now.Add(want + time.Millisecond)
			moved = moved || w.pairOf("s") != first
		}
		if !moved {
			t.Errorf("%v: still pinned after a pause longer than that", ttl)
		}
	}
}

func TestSessionAffinity(t *testing.T) {
	moves := func(w *world, session string) bool {
		first := w.pairOf(session)
		for range 30 {
			w.now = w.now.Add(time.Second)
			if w.pairOf(session) != first {
				return true
			}
		}
		return false
	}
	for _, tt := range []struct {
		affinity, session string
		pairs, want       bool // stays
	}{
		{picker.SessionsPD, "s", true, true},
		{picker.SessionsPD, "s", false, false},
		{picker.SessionsAll, "s", true, true},
		{picker.SessionsAll, "s", false, true},
		{picker.SessionsAll, "", false, false},
		{picker.SessionsOff, "s", true, false},
		{picker.SessionsOff, "s", false, false},
	} {
		w := newWorld(t, sticky(tt.affinity), workers("A", "B", "C")...)
		if tt.pairs {
			w = pdWorld(t, sticky(tt.affinity))
		}
		if got := !moves(w, tt.session); got != tt.want {
			t.Errorf("%+v: stays %v", tt, got)
		}
	}
}

// A pin is gone when a member leaves, is open, the pair is open, or a member is
// unhealthy; and it does not come back with the member.
func TestAPinIsDropped(t *testing.T) {
	tests := map[string]struct {
		away, back func(w *world, prefill, decode string)
	}{
		"its decode worker left and came back": {
			func(w *world, _, d string) { w.feed.Delete(d) },
			func(w *world, _, d string) { w.feed.Put(leg(d, "x")) },
		},
		"its prefill worker left and came back": {
			func(w *world, p, _ string) { w.feed.Delete(p) },
			func(w *world, p, _ string) { w.feed.Put(leg(p, "x")) },
		},
		"its decode worker was open": {
			func(w *world, _, d string) { w.ends(d, 3, breaker.Origin) },
			func(w *world, _, d string) {
				w.now = w.now.Add(5 * time.Second)
				c := w.set.Circuit(d).Force(w.now)
				c.Done(w.now, breaker.Success)
			},
		},
		"the pair was open": {
			func(w *world, p, d string) {
				for range 2 {
					x, err := w.p.Direct(w.now, d, p, w.request("x:16"))
					if err != nil {
						w.Fatal(err)
					}
					x.Done(w.now, breaker.Transfer)
				}
			},
			func(w *world, p, d string) {
				w.now = w.now.Add(10 * time.Second)
				x, err := w.p.Direct(w.now, d, p, w.request("x:16"))
				if err != nil {
					w.Fatal(err)
				}
				x.FirstToken(w.now)
				x.Done(w.now, breaker.Success)
			},
		},
		"its decode worker was unhealthy": {
			func(w *world, _, d string) { w.p.SetHealth(sick{d: true}); w.p.Refresh(w.now) },
			func(w *world, _, _ string) {
				w.now = w.now.Add(time.Second)
				w.p.SetHealth(sick{})
				w.p.Refresh(w.now)
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			stayed := 0
			for i := range 12 {
				cfg := sticky(picker.SessionsPD)
				cfg.Seed = uint64(i + 1)
				w := pdWorld(t, cfg)
				first := w.pairOf("s")
				w.now = w.now.Add(time.Second)
				tt.away(w, first[:2], first[2:])
				w.p.Refresh(w.now)
				if i%2 == 0 { // asked meanwhile: it goes elsewhere
					if got := w.pairOf("s"); got == first {
						t.Fatalf("still on %s", got)
					}
				}
				tt.back(w, first[:2], first[2:])
				w.p.Refresh(w.now)
				w.now = w.now.Add(time.Second)
				if w.pairOf("s") == first {
					stayed++
				}
			}
			if stayed > 9 {
				t.Errorf("%d of 12 times back on the same pair: the pin is still there", stayed)
			}
		})
	}
}

func TestARetryMovesThePin(t *testing.T) {
	w := pdWorld(t, sticky(picker.SessionsPD))
	first := w.pairOf("s")
	req := w.talk("s")
	req.Tried = []string{first[2:]}
	d := w.pick(req)
	if d.Worker.ID == first[2:] {
		t.Fatal("the worker that failed is asked again")
	}
	d.PrefillDone(w.now, breaker.Success)
	d.Done(w.now, breaker.Success)
	w.now = w.now.Add(time.Second)
	if got := w.pairOf("s"); got != d.Prefill.ID+d.Worker.ID {
		t.Errorf("the next turn goes to %s", got)
	}
}

func TestPinsAreExplainedAndCarryAffinity(t *testing.T) {
	w := newWorld(t, sticky(picker.SessionsAll), workers("A", "B")...)
	w.pairOf("s")
	w.now = w.now.Add(time.Second)
	if rec := w.p.Dry(w.now, w.talk("s")); !rec.Pinned {
		t.Errorf("dry: %v", rec)
	}
	d := w.pick(w.talk("s"))
	if !d.Affinity() || !w.p.Records()[0].Pinned {
		t.Errorf("affinity %v, record %v", d.Affinity(), w.p.Records()[0])
	}
}

// One name for all clients must not load one worker with everything (failover §5 S15).
func TestAPinYieldsToLoad(t *testing.T) {
	w := newWorld(t, sticky(picker.SessionsAll), workers("A", "B", "C")...)
	got := map[string]int{}
	for range 300 {
		got[w.pick(w.talk("everybody")).Worker.ID]++ // none of them ends
	}
	for id, n := range got {
		if n > 200 {
			t.Errorf("%s has %d of 300: %v", id, n, got)
		}
	}
}

// More random conversations than there are places: the memory is bounded, and a tenant's pin that is
// in use stays (failover §5 S17).
func TestS17SessionsAreBounded(t *testing.T) {
	const n = 120_000
	w := newWorld(t, sticky(picker.SessionsAll), workers("A", "B")...)
	first := w.pairOf("tenant b")
	req := w.talk("")
	for i := range n {
		req.Session = fmt.Sprint("x", i)
		d := w.pick(req)
		d.Done(w.now, breaker.Neutral)
		if i%50_000 == 0 {
			if got := w.pairOf("tenant b"); got != first {
				t.Fatalf("tenant b moved after %d", i)
			}
		}
	}
	if got := w.p.Sessions(); got != 100_000 {
		t.Errorf("%d conversations are remembered", got)
	}
}

func TestSessionKeysKeepTenantsApart(t *testing.T) {
	keys := map[string]bool{}
	for _, k := range []string{
		picker.SessionKey("org_1", "2345", nil), picker.SessionKey("org_12345", "", []byte("u")),
		picker.SessionKey("org_1", "", []byte("2345")), picker.SessionKey("", "2345", nil),
		picker.SessionKey("a", "b", []byte("c")), picker.SessionKey("ab", "", []byte("c")),
	} {
		if k == "" || keys[k] {
			t.Errorf("key %q is empty or there twice", k)
		}
		keys[k] = true
	}
	if picker.SessionKey("org", "", nil) != "" {
		t.Error("a session of nothing")
	}
	if picker.SessionKey("o", "id", []byte("u")) != picker.SessionKey("o", "id", []byte("v")) {
		t.Error("the header does not beat the body")
	}
}
