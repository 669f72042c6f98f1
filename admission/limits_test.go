package admission_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"pointsman/admission"
)

// enter admits a request that must run at once.
func enter(t *testing.T, g *admission.Gate, r *admission.Request) admission.Pass {
	t.Helper()
	pass, err := g.Enter(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return pass
}

func adaptive(ceiling int) admission.Config {
	c := enforcing(ceiling, 0)
	c.Adaptive, c.TTFTTarget = true, time.Second
	return c
}

// contract 1.3b, fc_adaptive: x4/5 down to a quarter, +1 up, frozen without
// reports.
func TestFcAdaptiveTightensWidensAndFreezesAfterFcTelemetryStaleMs(t *testing.T) {
	g := admission.NewGate(adaptive(16))
	now := time.Unix(1000, 0)
	step := func(waiting int) admission.Snapshot {
		now = now.Add(time.Second)
		if waiting >= 0 {
			g.Report(now, "w1", waiting)
		}
		g.Tick(now)
		return g.Snapshot()
	}
	for i, want := range []int{12, 9, 7, 5, 4, 4} {
		if s := step(3); s.EffectiveMax != want || s.AdaptState != "tightened" || s.AdaptReason != "waiting" {
			t.Fatalf("second %d under load: %+v, want %d", i, s, want)
		}
	}
	if s := step(0); s.EffectiveMax != 5 || s.AdaptState != "tightened" || s.AdaptReason != "clear" {
		t.Errorf("when clear: %+v, want 5", s)
	}
	for range 600 { // ten minutes without a report: the last one is fresh for 30 s
		step(-1)
	}
	frozen := g.Snapshot()
	if frozen.AdaptState != "frozen" || frozen.AdaptReason != "stale" || frozen.EffectiveMax != 16 {
		t.Errorf("without reports: %+v", frozen)
	}
	for range 600 {
		if s := step(-1); s.EffectiveMax != frozen.EffectiveMax {
			t.Fatalf("a frozen limit went from %d to %d", frozen.EffectiveMax, s.EffectiveMax)
		}
	}
	for range 20 {
		step(0)
	}
	if s := g.Snapshot(); s.EffectiveMax != 16 || s.AdaptState != "open" {
		t.Errorf("clear for long: %+v, want the ceiling", s)
	}
}

// contract 2C: telemetry that dies while the limit is tight freezes it.
func TestALimitThatIsTightStaysTightWithoutTelemetry(t *testing.T) {
	c := adaptive(16)
	c.TelemetryStale = 2 * time.Second
	g := admission.NewGate(c)
	now := time.Unix(1000, 0)
	for range 3 {
		now = now.Add(time.Second)
		g.Report(now, "w1", 9)
		g.Tick(now)
	}
	for range 3 { // the last report is still held for true
		now = now.Add(time.Second)
		g.Tick(now)
	}
	tight := g.Snapshot().EffectiveMax
	for range 600 {
		now = now.Add(time.Second)
		g.Tick(now)
		if s := g.Snapshot(); s.EffectiveMax != tight || s.AdaptState != "frozen" {
			t.Fatalf("%+v, want frozen at %d", s, tight)
		}
	}
	if n := value(t, g, "adapt_state", "frozen"); n != 1 {
		t.Errorf("metric adapt_state frozen = %v", n)
	}
}

func TestFcTtftTargetMsTightensOnLateFirstTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(adaptive(10)), new(place)
		stream := func(ttft time.Duration) admission.Snapshot {
			pass := enter(t, g, request(p))
			pass.FirstToken(time.Now().Add(ttft))
			pass.Release()
			pass.FirstToken(time.Now().Add(time.Hour)) // too late to count
			g.Tick(time.Now())
			time.Sleep(time.Second)
			return g.Snapshot()
		}
		if s := stream(3 * time.Second); s.EffectiveMax != 8 || s.AdaptReason != "ttft" {
			t.Errorf("late: %+v, want 8", s)
		}
		if s := stream(100 * time.Millisecond); s.EffectiveMax != 9 || s.AdaptReason != "clear" {
			t.Errorf("in time: %+v, want 9", s)
		}
	})
}

// contract 1.3b, fc_tenant_max_share_pct: of the ceiling and of the queue, at
// least 1, rounded up; the others go past a tenant that has its share.
func TestFcTenantMaxSharePctBoundsOneTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := enforcing(5, 4)
		c.TenantSharePct = 50
		g, p := admission.NewGate(c), new(place)
		of := func(tenant string) *admission.Request {
			r := request(p)
			r.Tenant = tenant
			return r
		}
		for range 3 { // 50 % of 5, rounded up
			enter(t, g, of("a"))
		}
		for range 2 { // 50 % of 4 wait
			go func() { _, _ = g.Enter(t.Context(), of("a")) }()
			synctest.Wait()
		}
		_, err := g.Enter(t.Context(), of("a"))
		refused(t, err, http.StatusTooManyRequests, admission.CodeTenant)
		enter(t, g, of("b"))
		enter(t, g, of("b"))
		if s := g.Snapshot(); s.Inflight != 5 || s.Queued != 2 || s.TenantsActive != 2 {
			t.Errorf("%+v, want 5 running, 2 waiting, 2 tenants", s)
		}
		if n := value(t, g, "decisions_total", "tenant_share"); n != 1 {
			t.Errorf("tenant_share counted %v times", n)
		}
		time.Sleep(time.Minute)
	})
}

func TestTenantsBeyondTheSlotsShareOne(t *testing.T) {
	c := enforcing(1000, 0)
	c.TenantSharePct = 1
	g, p := admission.NewGate(c), new(place)
	var passes []admission.Pass
	for i := range 64 + 10 { // 1 % of 1000 is 10
		r := request(p)
		r.Tenant = string(rune('A' + i))
		passes = append(passes, enter(t, g, r))
	}
	r := request(p)
	r.Tenant = "one more"
	_, err := g.Enter(t.Context(), r)
	refused(t, err, http.StatusTooManyRequests, admission.CodeTenant)
	if s := g.Snapshot(); s.TenantsActive != 65 {
		t.Errorf("%d tenants, want 64 and the shared slot", s.TenantsActive)
	}
	if n := value(t, g, "anomalies_total", "tenant_table_full"); n != 11 {
		t.Errorf("tenant_table_full = %v, want 11", n)
	}
	for _, pass := range passes {
		pass.Release()
	}
	if s := g.Snapshot(); s.TenantsActive != 0 {
		t.Errorf("%d tenants left", s.TenantsActive)
	}
}

// contract 2C, wake rule: a raised ceiling wakes as many as there is room for.
func TestARaisedCeilingAdmitsAsManyAsThereIsRoomFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := enforcing(1, 20)
		g, p := admission.NewGate(c), new(place)
		for range 10 {
			go func() { _, _ = g.Enter(t.Context(), request(p)) }()
		}
		synctest.Wait()
		c.MaxOutstanding = 4
		if err := g.SetConfig(c); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := g.Snapshot(); s.Inflight != 4 || s.Queued != 6 || p.picks != 4 {
			t.Errorf("%+v after %d picks, want 4 running and 6 waiting", s, p.picks)
		}
		c.MaxOutstanding = -1
		if g.SetConfig(c) == nil {
			t.Error("a ceiling below 0 is taken")
		}
		time.Sleep(time.Minute)
	})
}

// A deadline is set when the request first has to wait; a reload changes none.
func TestAReloadNeitherShortensNorLengthensAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := enforcing(1, 20)
		g, p := admission.NewGate(c), new(place)
		enter(t, g, request(p))
		took := make(chan time.Duration, 1)
		go func() {
			began := time.Now()
			_, _ = g.Enter(t.Context(), request(p))
			took <- time.Since(began)
		}()
		synctest.Wait()
		for _, wait := range []time.Duration{time.Hour, time.Millisecond} {
			c.QueueWait = wait
			if err := g.SetConfig(c); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if d := <-took; d != 5*time.Second {
			t.Errorf("waited %v, want 5s", d)
		}
	})
}

// N replicas share the ceiling, rounding up.
func TestReplicasShareTheCeiling(t *testing.T) {
	c := enforcing(10, 0)
	c.Replicas = 3
	g, p := admission.NewGate(c), new(place)
	for range 4 {
		enter(t, g, request(p))
	}
	_, err := g.Enter(t.Context(), request(p))
	refused(t, err, http.StatusTooManyRequests, admission.CodeCapacity)
	if s := g.Snapshot(); s.EffectiveMax != 4 {
		t.Errorf("effective %d, want 4", s.EffectiveMax)
	}
}

// The share follows the replicas that live, unless their number is fixed.
func TestTheShareFollowsTheReplicasThatLive(t *testing.T) {
	for fixed, want := range map[int][]int{0: {10, 4, 10}, 2: {5, 5, 5}} {
		c := enforcing(10, 0)
		c.Replicas = fixed
		g := admission.NewGate(c)
		for i, live := range []int{1, 3, 0} {
			g.SetReplicas(live)
			if s := g.Snapshot(); s.EffectiveMax != want[i] {
				t.Errorf("%d replicas live, %d fixed: effective %d, want %d", live, fixed, s.EffectiveMax, want[i])
			}
		}
	}
}

func TestAdmissionDrainedEndsThoseThatWaitAndLetsTheOthersFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(1, 5)), new(place)
		running := enter(t, g, request(p))
		parked := make(chan error, 1)
		go func() { _, err := g.Enter(t.Context(), request(p)); parked <- err }()
		synctest.Wait()
		g.Drain()
		r := refused(t, <-parked, http.StatusServiceUnavailable, admission.CodeDrained)
		if r.Seconds() != 5 {
			t.Errorf("Retry-After %d, want 5", r.Seconds())
		}
		_, err := g.Enter(t.Context(), request(p))
		if r := refused(t, err, http.StatusServiceUnavailable, admission.CodeDraining); r.Seconds() != 5 {
			t.Errorf("Retry-After %d, want 5", r.Seconds())
		}
		if s := g.Snapshot(); !s.Draining || s.Inflight != 1 || s.Queued != 0 {
			t.Errorf("the read-back says %+v while one request runs", s)
		}
		running.Release()
		if s := g.Snapshot(); s.Inflight != 0 {
			t.Errorf("in flight %d", s.Inflight)
		}
	})
}

// contract 2C, accounting: what is never released is reported, once.
func TestARequestThatIsNeverReleasedIsReportedOnce(t *testing.T) {
	c := enforcing(5, 0)
	c.LeakAge = time.Minute
	g, p := admission.NewGate(c), new(place)
	old := enter(t, g, request(p))
	now := time.Now()
	g.Tick(now.Add(30 * time.Second))
	if n := value(t, g, "anomalies_total", "leak"); n != 0 {
		t.Errorf("leak = %v after half the age", n)
	}
	for i := range 5 {
		g.Tick(now.Add(61*time.Second + time.Duration(i)*time.Minute))
	}
	if n := value(t, g, "anomalies_total", "leak"); n != 1 {
		t.Errorf("leak = %v, want 1", n)
	}
	old.Release()
}

// Workers that vanish end the wait for them; a request that never waited is told
// what its pick said.
func TestWorkersThatVanishEndTheWaitWith503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := admission.NewGate(enforcing(0, 5))
		state := admission.ErrFull
		pick := func(time.Time) error { return state }
		got := make(chan error, 1)
		go func() {
			_, err := g.Enter(t.Context(), &admission.Request{Units: 1, Pick: pick})
			got <- err
		}()
		synctest.Wait()
		state = admission.ErrNoCapacity
		g.Wake()
		refused(t, <-got, http.StatusServiceUnavailable, admission.CodeNoCapacity)
		if _, err := g.Enter(t.Context(), &admission.Request{Units: 1, Pick: pick}); !errors.Is(err, admission.ErrNoCapacity) {
			t.Errorf("error %v, want the pick's own", err)
		}
		if n := value(t, g, "decisions_total", "no_healthy_capacity"); n != 2 {
			t.Errorf("no_healthy_capacity = %v, want 2", n)
		}
	})
}

// One release makes one pick: nobody is woken in vain.
func TestOneReleaseWakesOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(1, 50)), new(place)
		first := enter(t, g, request(p))
		for range 30 {
			go func() {
				if pass, err := g.Enter(t.Context(), request(p)); err == nil {
					time.Sleep(time.Millisecond)
					pass.Release()
				}
			}()
		}
		synctest.Wait()
		if p.count() != 1 {
			t.Errorf("%d picks before the release", p.count())
		}
		first.Release()
		synctest.Wait()
		if p.count() != 2 {
			t.Errorf("%d picks after one release, want 2", p.count())
		}
		time.Sleep(time.Second)
		if p.count() != 31 {
			t.Errorf("%d picks of 31 requests", p.count())
		}
	})
}

func TestABugInAPickEndsItsOwnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p := admission.NewGate(enforcing(1, 5)), new(place)
		first := enter(t, g, request(p))
		caught, served := make(chan any, 1), make(chan error, 1)
		go func() {
			defer func() { caught <- recover() }()
			_, _ = g.Enter(t.Context(), &admission.Request{Units: 1, Pick: func(time.Time) error { panic("a bug") }})
		}()
		synctest.Wait()
		go func() {
			pass, err := g.Enter(t.Context(), request(p))
			pass.Release()
			served <- err
		}()
		synctest.Wait()
		first.Release()
		if <-caught == nil {
			t.Error("the panic did not reach its own goroutine")
		}
		if err := <-served; err != nil {
			t.Errorf("the next request: %v", err)
		}
	})
}
