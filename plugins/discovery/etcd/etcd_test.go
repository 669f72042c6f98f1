package etcd

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// impatient returns a configuration that gives up in test time.
func impatient(endpoint string) Config {
	return Config{
		Endpoints: endpoint, Timeout: 2 * time.Second, Probe: 50 * time.Millisecond, Silence: 600 * time.Millisecond,
		Backoff: 20 * time.Millisecond, MaxBackoff: 100 * time.Millisecond,
	}
}

func follow(t *testing.T, cfg Config) *testfleet.Following {
	t.Helper()
	f, _ := testfleet.Follow(t, func(log *testkit.Log) (*Source, error) { return New(cfg, log.Logger()) })
	return f
}

func record(id string, more ...string) string {
	return fmt.Sprintf(`{"worker_id":%q,"url":"http://%s","model_name":"m"%s}`, id, id, strings.Join(more, ""))
}

// bench is an etcd, a client to change it by, and a source that follows it
// through a proxy.
type bench struct {
	*testfleet.Etcd
	t      *testing.T
	client *clientv3.Client
	proxy  *testfleet.Proxy
}

func newBench(t *testing.T) *bench {
	t.Helper()
	e := testfleet.StartEtcd(t, nil)
	return &bench{Etcd: e, t: t, client: e.Client(t), proxy: testfleet.StartProxy(t, strings.TrimPrefix(e.Endpoint, "http://"))}
}

func (b *bench) put(id string, opts ...clientv3.OpOption) int64 {
	b.t.Helper()
	return b.Put(b.t, b.client, wire.WorkerKey("", id), record(id), opts...)
}

func (b *bench) putValue(id, value string) int64 {
	b.t.Helper()
	return b.Put(b.t, b.client, wire.WorkerKey("", id), value)
}

func (b *bench) delete(id string) {
	b.t.Helper()
	if _, err := b.client.Delete(b.t.Context(), wire.WorkerKey("", id)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) lease() clientv3.LeaseID {
	b.t.Helper()
	l, err := b.client.Grant(b.t.Context(), 60)
	if err != nil {
		b.t.Fatal(err)
	}
	return l.ID
}

func TestRegisterChangeAndLeave(t *testing.T) {
	b := newBench(t)
	first := b.lease()
	b.put("a:1", clientv3.WithLease(first))
	b.Put(t, b.client, "/infera/workers0/c:1", record("c:1"))
	f := follow(t, impatient(b.Endpoint))
	f.Want("the listing", "a:1")
	if w := f.Store.Snapshot().Worker("a:1"); w.Model != "m" || w.URL != "http://a:1" || w.Incarnation != fmt.Sprintf("lease %x", first) {
		t.Errorf("got %+v", w)
	}

	b.put("b:1")
	f.Want("a new worker", "a:1", "b:1")
	created := f.Store.Snapshot().Worker("b:1").Incarnation
	b.putValue("b:1", record("b:1", `,"kv_events_endpoint":"tcp://b:20001","kv_block_size":32`))
	f.Until("its new record (D7)", func() bool { return f.Store.Snapshot().Worker("b:1").BlockSize == 32 })
	if w := f.Store.Snapshot().Worker("b:1"); w.KVEvents != "tcp://b:20001" || w.Incarnation != created {
		t.Errorf("changed without being created anew: %+v, incarnation before %q", w, created)
	}
	b.delete("b:1")
	f.Want("its leaving", "a:1")
	b.put("b:1")
	f.Want("its return", "a:1", "b:1")
	if got := f.Store.Snapshot().Worker("b:1").Incarnation; got == created || !strings.HasPrefix(got, "revision ") {
		t.Errorf("created anew: incarnation %q, before %q", got, created)
	}

	second := b.lease()
	b.put("a:1", clientv3.WithLease(second))
	f.Until("the restarted worker's incarnation", func() bool {
		return f.Store.Snapshot().Worker("a:1").Incarnation == fmt.Sprintf("lease %x", second)
	})
	if _, err := b.client.Revoke(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	f.Want("the end of its lease", "b:1")
}

func TestAPrefixOfOnesOwn(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	b.Put(t, b.client, "/lab/b:1", record("b:1"))
	cfg := impatient(b.Endpoint)
	cfg.Prefix = "/lab"
	f := follow(t, cfg)
	f.Want("the other prefix", "b:1")
}

// D1: what happens while the connection is down is made up for.
func TestChangesDuringAnOutageAreNotLost(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	b.put("b:1")
	f := follow(t, impatient(b.proxy.Address))
	f.Want("the listing", "a:1", "b:1")
	b.proxy.Freeze()
	b.proxy.Cut()
	b.delete("a:1")
	b.put("c:1")
	f.Until("noticing", func() bool { return !f.Store.Connected() })
	f.Want("the last known fleet", "a:1", "b:1")
	b.proxy.Thaw()
	f.Want("the present fleet", "b:1", "c:1")
	f.Until("being in step", f.Store.Connected)
}

// D1, with history gone: the watch cannot be resumed where it was.
func TestACompactedHistoryIsMadeUpForByListing(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	f := follow(t, impatient(b.proxy.Address))
	f.Want("the listing", "a:1")
	b.proxy.Freeze()
	b.delete("a:1")
	at := b.put("b:1")
	if _, err := b.client.Compact(t.Context(), at, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	b.proxy.Cut()
	b.proxy.Thaw()
	f.Want("the present fleet", "b:1")
}

func TestARestartOfEtcd(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	f := follow(t, impatient(b.Endpoint))
	f.Want("the listing", "a:1")
	b.Restart(t)
	b.put("b:1")
	f.Want("a change after it", "a:1", "b:1")
	f.Until("being in step", f.Store.Connected)
}

// A watch from a revision that etcd no longer has reached would wait for ever.
func TestAnEtcdThatLostItsData(t *testing.T) {
	var dirs []string
	e := testfleet.StartEtcd(t, func(cfg *embed.Config) {
		if len(dirs) > 0 {
			cfg.Dir = t.TempDir()
		}
		dirs = append(dirs, cfg.Dir)
	})
	b := &bench{Etcd: e, t: t, client: e.Client(t)}
	for i := range 10 {
		b.put(fmt.Sprintf("a:%d", i+1))
	}
	f := follow(t, impatient(b.Endpoint))
	f.Until("the listing", func() bool { return len(f.IDs()) == 10 })
	b.Restart(t)
	if len(dirs) != 2 || dirs[0] == dirs[1] {
		t.Fatalf("data in %q", dirs)
	}
	b.put("b:1")
	f.Want("the fleet of the new data", "b:1")
}

// D2: nothing is lost between the listing and the watch.
func TestAChangeBetweenListingAndWatching(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	src, err := New(impatient(b.Endpoint), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	store := new(fleet.Store)
	f := &follower{Source: src, feed: fleet.NewFeed(store), bad: map[string]int64{}}
	ctx, cancel := context.WithCancel(t.Context())
	client, err := f.connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := f.list(ctx, client); err != nil {
		t.Fatal(err)
	}
	b.put("b:1")
	b.delete("a:1")
	done := make(chan error, 1)
	go func() { done <- f.follow(ctx, client) }()
	view := testfleet.Watching(t, store)
	view.Want("both changes", "b:1")
	cancel()
	<-done
}

// D3: a connection on which nothing arrives any more, though it is open.
func TestABlackHoleIsNoticed(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	f := follow(t, impatient(b.proxy.Address))
	f.Want("the listing", "a:1")
	connections := b.proxy.Taken()
	b.proxy.Freeze()
	b.put("b:1")
	f.Until("noticing", func() bool { return !f.Store.Connected() })
	f.Until("a new connection", func() bool { return b.proxy.Taken() > connections })
	if age, ok := f.Store.Staleness(time.Now()); !ok || age < 300*time.Millisecond {
		t.Errorf("staleness %v, %v", age, ok)
	}
	f.Want("the last known fleet", "a:1")
	b.proxy.Thaw()
	f.Want("the present fleet", "a:1", "b:1")
	f.Until("being in step", f.Store.Connected)
	if f.Log.Count("no sign of life") != 1 {
		t.Errorf("the silence should be said once:\n%s", f.Log)
	}
}

// A quiet etcd is not a dead one, and says so.
func TestQuietIsFresh(t *testing.T) {
	b := newBench(t)
	cfg := impatient(b.proxy.Address)
	f := follow(t, cfg)
	f.Want("an empty fleet")
	connections := b.proxy.Taken()
	start := time.Now()
	f.Until("twice the silence", func() bool { return time.Since(start) > 2*cfg.Silence })
	if age, _ := f.Store.Staleness(time.Now()); age > cfg.Silence || !f.Store.Connected() || b.proxy.Taken() != connections {
		t.Errorf("staleness %v, connected %v, %d new connections", age, f.Store.Connected(), b.proxy.Taken()-connections)
	}
}

// D10: one worker under one key; nobody takes another's place by writing its ID under a key of his own
// (security S4): the first stays, whichever key comes first in a listing.
func TestTheKeyIsTheIdentity(t *testing.T) {
	b := newBench(t)
	b.put("b:1")
	b.putValue("a:1", `{"worker_id":"b:1","url":"http://evil:1","model_name":"m"}`)
	f := follow(t, impatient(b.Endpoint))
	f.Want("the record whose key says the same", "b:1")
	if url := f.Store.Snapshot().Worker("b:1").URL; url != "http://b:1" {
		t.Errorf("the worker is at %s", url)
	}
	f.Until("the conflict", func() bool { return f.Store.Conflicts() == 1 })

	b.putValue("c:1", `{"worker_id":"b:1","url":"http://evil:1","model_name":"m"}`)
	f.Until("a conflict while following", func() bool { return f.Store.Conflicts() == 2 })
	b.delete("a:1")
	b.delete("c:1")
	b.put("d:1")
	f.Want("only what is registered", "b:1", "d:1")
	if url := f.Store.Snapshot().Worker("b:1").URL; url != "http://b:1" || f.Store.Conflicts() != 2 {
		t.Errorf("the worker is at %s, %d conflicts", url, f.Store.Conflicts())
	}
}

// D11, and records with nonsense: alone, visible, never the former record.
func TestUnusableRecords(t *testing.T) {
	b := newBench(t)
	b.put("good:1")
	b.putValue("bad:1", record("bad:1", `,"kv_block_size":"many"`))
	b.Put(t, b.client, "/infera/workers/", record("nameless:1"))
	f := follow(t, impatient(b.proxy.Address))
	f.Want("what can be used", "good:1")
	skipped := func(reason string, n uint64) {
		t.Helper()
		f.Until(fmt.Sprintf("%d of %s", n, reason), func() bool { return f.Store.Skipped()[reason] == n })
	}
	skipped("kv_block_size", 1)
	skipped("worker_id", 1)

	b.putValue("bad:1", "\x00\xff")
	skipped("json", 1)
	b.put("bad:1")
	f.Want("the mended record", "bad:1", "good:1")
	b.putValue("bad:1", record("bad:1", `,"status":"bogus"`))
	f.Until("a worker without requests", func() bool { return f.Store.Snapshot().Worker("bad:1").Status == fleet.Draining })
	skipped("status", 1)
	b.putValue("bad:1", record("bad:1", `,"disagg_mode":"encode"`))
	f.Want("a worker whose record no longer holds", "good:1")
	skipped("disagg_mode", 1)

	// A new listing finds the same records and says nothing new.
	said := f.Log.Count("cannot be used")
	b.proxy.Freeze()
	f.Until("noticing", func() bool { return !f.Store.Connected() })
	b.proxy.Thaw()
	f.Until("being in step", f.Store.Connected)
	f.Want("the same fleet", "good:1")
	if now := f.Log.Count("cannot be used"); now != said || said != 5 {
		t.Errorf("said %d times before and %d after a new listing, want 5:\n%s", said, now, f.Log)
	}
	b.delete("bad:1")
	b.putValue("bad:1", "{}")
	skipped("worker_id", 2)
}

func TestAnEtcdThatIsDownAtTheStart(t *testing.T) {
	e := testfleet.StartEtcd(t, nil)
	e.Stop(t)
	cfg := impatient(e.Endpoint)
	cfg.Timeout = 200 * time.Millisecond
	f := follow(t, cfg)
	f.Until("a complaint", func() bool { return f.Log.Count("out of step") == 1 })
	if f.Store.Synced() || f.Store.Connected() {
		t.Error("synced with nothing")
	}
	e.Start(t)
	b := &bench{Etcd: e, t: t, client: e.Client(t)}
	b.put("a:1")
	f.Want("the fleet", "a:1")
}

func TestAThousandWorkers(t *testing.T) {
	b := newBench(t)
	const n, perTxn = 1000, 100
	putAll := func(more string) {
		for from := 0; from < n; from += perTxn {
			var ops []clientv3.Op
			for i := from; i < from+perTxn; i++ {
				id := fmt.Sprintf("10.0.%d.%d:30000", i/250, i%250)
				ops = append(ops, clientv3.OpPut(wire.WorkerKey("", id), record(id, more)))
			}
			if _, err := b.client.Txn(t.Context()).Then(ops...).Commit(); err != nil {
				t.Fatal(err)
			}
		}
	}
	putAll("")
	f := follow(t, impatient(b.Endpoint))
	f.Until("all of them", func() bool { return len(f.IDs()) == n })
	if v := f.Store.Snapshot().Version; v != 1 {
		t.Errorf("a listing was published %d times", v)
	}
	putAll(`,"kv_block_size":16`)
	f.Until("all their changes", func() bool {
		for _, w := range f.Store.Snapshot().Workers {
			if w.BlockSize != 16 {
				return false
			}
		}
		return true
	})
	if _, err := b.client.Delete(t.Context(), "/infera/workers/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	f.Want("an empty fleet")
}

func TestUserAndPassword(t *testing.T) {
	b := newBench(t)
	b.put("a:1")
	ctx := t.Context()
	for _, step := range []func() error{
		func() error { _, err := b.client.UserAdd(ctx, "root", "secret"); return err },
		func() error { _, err := b.client.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := b.client.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	for name, cfg := range map[string]Config{"nobody": {}, "a wrong password": {User: "root", Password: "guess"}} {
		with := impatient(b.Endpoint)
		with.User, with.Password = cfg.User, cfg.Password
		f := follow(t, with)
		f.Until(name+" to be refused", func() bool { return f.Log.Count("out of step") == 1 })
		if f.Store.Synced() || strings.Contains(f.Log.String(), "guess") {
			t.Errorf("%s: synced %v, log:\n%s", name, f.Store.Synced(), f.Log)
		}
	}
	cfg := impatient(b.Endpoint)
	cfg.User, cfg.Password = "root", "secret"
	f := follow(t, cfg)
	f.Want("the fleet", "a:1")
	f.Until("a proof of progress", func() bool { age, _ := f.Store.Staleness(time.Now()); return age < cfg.Probe })
}

func TestNonsenseInEveryByte(t *testing.T) {
	b := newBench(t)
	f := follow(t, impatient(b.Endpoint))
	f.Want("an empty fleet")
	whole := record("w:1", `,"dp_size":2,"disagg_meta":{"protocol":"p","params":{}}`)
	for i := range whole {
		b.putValue(fmt.Sprintf("cut:%d", i+1), whole[:i])
		b.putValue(fmt.Sprintf("hit:%d", i+1), whole[:i]+"\x01"+whole[i+1:])
	}
	b.put("z:1")
	f.Until("the good record behind them", func() bool { return f.Store.Snapshot().Worker("z:1") != nil })
	if got := f.IDs(); len(got) != 1 {
		t.Errorf("fleet %q", got)
	}
	var skipped uint64
	for _, n := range f.Store.Skipped() {
		skipped += n
	}
	if want := uint64(2 * len(whole)); skipped != want {
		t.Errorf("%d records skipped, want %d", skipped, want)
	}
}

func FuzzChange(f *testing.F) {
	f.Add("w:1", []byte(record("w:1")), int64(7), int64(1), false)
	f.Add("", []byte("{}"), int64(0), int64(2), false)
	f.Add("w:1", []byte(nil), int64(0), int64(3), true)
	src, err := New(impatient("unused:1"), slog.New(slog.DiscardHandler))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key string, value []byte, lease, revision int64, gone bool) {
		store := new(fleet.Store)
		fl := &follower{Source: src, feed: fleet.NewFeed(store), bad: map[string]int64{}}
		fl.feed.Put(&fleet.Worker{ID: key, DPRank: -1})
		fl.change(t.Context(), fuzzedEvent(key, value, lease, revision, gone))
		w := store.Snapshot().Worker(key)
		if gone {
			if key != "" && w != nil {
				t.Fatalf("%+v is there after its deletion", w)
			}
			return
		}
		if _, err := wire.DecodeRegistration(key, value); err != nil && len(store.Skipped()) != 1 {
			t.Fatalf("%v went uncounted", err)
		}
		if w != nil && key != "" && w.Incarnation == "" {
			t.Fatalf("kept %+v of an unusable record", w)
		}
	})
}
