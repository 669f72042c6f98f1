package simengine

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"pointsman/fleet"
	"pointsman/internal/testkit"
)

func TestConfigFaultsAreAllReported(t *testing.T) {
	good := DefaultConfig()
	if err := good.Validate(); err != nil {
		t.Fatalf("the default is not valid: %v", err)
	}
	bad := Config{
		Port: -1, ControlPort: -2, MaxModelLen: 0, Time: TimeConfig{DecodeStep: -1}, Etcd: EtcdConfig{Endpoint: "x"},
		KV: KVEventsConfig{Port: 70000, ReplayPort: -7, Loss: 2, Delay: -1}, DrainTimeout: -1, Fault: Fault{Mode: "explode"},
	}
	err := bad.Validate()
	for _, part := range []string{
		"port -1", "control port", "kv events port", "kv replay port", "model:", "engine:", "max model length", "block size", "cache capacity",
		"prefill rate", "decode time", "chunk", "max sequences", "time scale", "replay buffer", "event loss", "event delay", "lease",
		"output tokens", "receipts limit", "drain timeout", "unknown fault",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("no fault about %q in: %v", part, err)
		}
	}
	if _, err := Start(t.Context(), bad); err == nil {
		t.Error("started all the same")
	}
}

func TestStartNamesThePortItCannotBind(t *testing.T) {
	e := start(t, fast())
	for _, tc := range []struct {
		name string
		edit func(*Config)
	}{
		{"http port", func(c *Config) { c.Port = e.port() }},
		{"control port", func(c *Config) { c.ControlPort = e.port() }},
		{"kv events socket", func(c *Config) { c.KV.Port = e.port() }},
	} {
		cfg := fast()
		tc.edit(&cfg)
		if _, err := Start(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), tc.name) {
			t.Errorf("error %v, want one about the %s", err, tc.name)
		}
	}
}

func TestEndpointsOfEtcd(t *testing.T) {
	for in, want := range map[string]string{
		"etcd":              "etcd:2379",
		"etcd:1":            "etcd:1",
		"http://etcd":       "http://etcd:2379",
		"http://etcd:1/":    "http://etcd:1",
		"https://10.0.0.1/": "https://10.0.0.1:2379",
		"[::1]":             "[::1]:2379",
		"[::1]:1":           "[::1]:1",
	} {
		if got := etcdEndpoint(in); got != want {
			t.Errorf("etcdEndpoint(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestAddressesAreTheAdvertisedOnes(t *testing.T) {
	cfg := fast()
	cfg.Host, cfg.AdvertiseHost = "0.0.0.0", "localhost"
	cfg.ControlPort, cfg.KV.Port, cfg.KV.ReplayPort = 0, 0, 0
	e := start(t, cfg)
	w := e.Worker()
	for _, s := range []string{e.ID(), e.URL(), e.ControlURL(), e.KVEvents(), e.KVReplay(), w.URL, w.KVEvents} {
		if !strings.Contains(s, "localhost:") || strings.HasSuffix(s, ":0") {
			t.Errorf("address %q", s)
		}
	}
	if w.Address() != e.ID() || w.Ranks() != 1 {
		t.Errorf("worker %+v", w)
	}
	cfg.AdvertiseHost = ""
	if e := start(t, cfg); !strings.HasPrefix(e.ID(), "127.0.0.1:") {
		t.Errorf("an engine on every address is %s", e.ID())
	}
}

// subscriber collects a publisher's messages.
type subscriber struct {
	mu       sync.Mutex
	payloads map[uint64][]byte
}

func subscribe(t *testing.T, e *Engine) *subscriber {
	t.Helper()
	s := &subscriber{payloads: map[uint64][]byte{}}
	sub := zmq4.NewSub(t.Context())
	t.Cleanup(func() { _ = sub.Close() })
	if err := sub.SetOption(zmq4.OptionSubscribe, Topic); err != nil {
		t.Fatal(err)
	}
	if err := sub.Dial(e.KVEvents()); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			msg, err := sub.Recv()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.payloads[binary.BigEndian.Uint64(msg.Frames[1])] = msg.Frames[2]
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *subscriber) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.payloads)
}

// replay asks for everything from start on.
func replay(t *testing.T, e *Engine, start uint64) map[uint64][]byte {
	t.Helper()
	dealer := zmq4.NewDealer(t.Context())
	defer dealer.Close()
	if err := dealer.Dial(e.KVReplay()); err != nil {
		t.Fatal(err)
	}
	if err := dealer.SendMulti(zmq4.NewMsgFrom([]byte{}, seqFrame(start))); err != nil {
		t.Fatal(err)
	}
	out := map[uint64][]byte{}
	for {
		msg, err := dealer.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seq := binary.BigEndian.Uint64(msg.Frames[1])
		if seq == endSeq {
			return out
		}
		out[seq] = msg.Frames[2]
	}
}

// traffic sends conversations whose prefixes repeat and that overflow the cache.
func traffic(t *testing.T, e *Engine, clients, each int) {
	t.Helper()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for i := range each {
				family := (c + i) % 5
				prompt := fmt.Sprintf("family %d %s request %d of %d", family, words(30+10*family), i, c)
				body := fmt.Sprintf(`{"prompt":%q,"max_tokens":%d,"ignore_eos":true,"n":%d}`, prompt, 1+i%20, 1+i%2)
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, e.URL()+"/v1/completions", strings.NewReader(body))
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("status %d", resp.StatusCode)
				}
			}
		})
	}
	wg.Wait()
}

func TestSubscriberWithReplayKnowsTheCacheExactly(t *testing.T) {
	for _, engine := range []fleet.Engine{fleet.VLLM, fleet.SGLang} {
		t.Run(string(engine), func(t *testing.T) {
			cfg := fast()
			cfg.Engine = engine
			cfg.KV = KVEventsConfig{ReplayPort: 0, Buffer: 10_000, Loss: 0.2}
			cfg.Cache = CacheConfig{BlockSize: 4, Capacity: 200}
			cfg.Time.MaxSeqs = 8
			e := start(t, cfg)
			sub := subscribe(t, e)
			traffic(t, e, 6, 30)
			idle(t, e)
			e.ClearCache()
			traffic(t, e, 4, 10)
			idle(t, e)
			var batches, lost uint64
			testkit.Until(t, "all batches numbered", func() bool {
				e.pub.qmu.Lock()
				n := len(e.pub.queue)
				e.pub.qmu.Unlock()
				batches, lost = e.pub.counts()
				return n == 0
			})
			if lost == 0 || batches < 100 {
				t.Fatalf("%d batches, %d lost: the test proves nothing", batches, lost)
			}
			all := replay(t, e, 0)
			if uint64(len(all)) != batches {
				t.Fatalf("%d batches replayed of %d", len(all), batches)
			}
			if n := uint64(sub.count()); n > batches-lost {
				t.Errorf("%d batches received, %d sent", n, batches-lost)
			}
			v := view{}
			for _, seq := range slices.Sorted(maps.Keys(all)) {
				v.apply(t, all[seq], 4)
			}
			sub.mu.Lock()
			for seq, p := range sub.payloads {
				if string(all[seq]) != string(p) {
					t.Errorf("batch %d differs between the socket and the replay", seq)
				}
			}
			sub.mu.Unlock()
			e.sched.mu.Lock()
			defer e.sched.mu.Unlock()
			v.mustEqual(t, e.sched.cache)
			e.sched.cache.check(t)
		})
	}
}

func TestARestartIsANewIncarnation(t *testing.T) {
	cfg := fast()
	cfg.KV = KVEventsConfig{ReplayPort: 0, Buffer: 100}
	first := start(t, cfg)
	body := `{"prompt":"` + words(40) + `","max_tokens":1}`
	post(t, first.URL()+"/v1/completions", body)
	idle(t, first)
	testkit.Until(t, "an event", func() bool { n, _ := first.pub.counts(); return n > 0 })
	before := replay(t, first, 0)
	port := first.port()
	first.Kill()
	cfg.Port = port
	second := start(t, cfg)
	u := decode[answer](t, post(t, second.URL()+"/v1/completions", body)).Usage
	if u.Details.CachedTokens != 0 {
		t.Errorf("%d tokens survived the restart", u.Details.CachedTokens)
	}
	idle(t, second)
	testkit.Until(t, "an event", func() bool { n, _ := second.pub.counts(); return n > 0 })
	after := replay(t, second, 0)
	if after[0] == nil {
		t.Fatal("sequences do not begin at 0")
	}
	if a, b := hashOf(t, before[0]), hashOf(t, after[0]); a == b {
		t.Error("two processes gave the same block the same hash")
	}
}

func TestSeedMakesHashesRepeatable(t *testing.T) {
	cfg := fast()
	cfg.Seed = 5
	cfg.KV = KVEventsConfig{ReplayPort: 0, Buffer: 100}
	var hashes []uint64
	for range 2 {
		e := start(t, cfg)
		post(t, e.URL()+"/v1/completions", `{"prompt":"`+words(40)+`","max_tokens":1}`)
		testkit.Until(t, "an event", func() bool { n, _ := e.pub.counts(); return n > 0 })
		hashes = append(hashes, hashOf(t, replay(t, e, 0)[0]))
	}
	if hashes[0] != hashes[1] {
		t.Errorf("the same seed gave hashes %x", hashes)
	}
}

func TestATOMSendsTwoFrames(t *testing.T) {
	cfg := fast()
	cfg.Engine, cfg.KV.Port = fleet.ATOM, 0
	e := start(t, cfg)
	sub := zmq4.NewSub(t.Context())
	t.Cleanup(func() { _ = sub.Close() })
	if err := sub.SetOption(zmq4.OptionSubscribe, Topic); err != nil {
		t.Fatal(err)
	}
	if err := sub.Dial(e.KVEvents()); err != nil {
		t.Fatal(err)
	}
	received := make(chan zmq4.Msg, 1)
	go func() {
		if msg, err := sub.Recv(); err == nil {
			received <- msg
		}
	}()
	var msg zmq4.Msg
	testkit.Until(t, "an event", func() bool { // the subscription travels on its own
		e.ClearCache()
		select {
		case msg = <-received:
			return true
		default:
			return false
		}
	})
	if len(msg.Frames) != 2 || string(msg.Frames[0]) != Topic {
		t.Errorf("frames %q, want topic and payload", msg.Frames)
	}
}

func TestKillBreaksConnectionsAndEndsEverything(t *testing.T) {
	cfg := fast()
	cfg.Time.Scale = 1
	e := start(t, cfg)
	_, done := hanging(t, e, `{"messages":[{"role":"user","content":"a"}],"max_tokens":100000,"stream":true,"ignore_eos":true}`, "ok")
	testkit.Until(t, "a stream", func() bool { return e.sched.load().running == 1 })
	e.Kill()
	<-done
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.ID()); err == nil {
		t.Error("the port is still open")
	}
	if r := e.Receipts()[0]; r.Outcome != OutcomeAborted {
		t.Errorf("receipt %+v", r)
	}
	e.Kill() // again: nothing
}

func TestContextEndsTheEngine(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, err := Start(ctx, fast())
	if err != nil {
		t.Fatal(err)
	}
	abort, done := hanging(t, e, chatStream, "hang_head")
	defer abort()
	testkit.Until(t, "a request", func() bool { return e.inflight.count() == 1 })
	cancel()
	<-done
	e.Kill() // waits
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", e.ID()); err == nil {
		t.Error("the port is still open")
	}
	if e.inflight.count() != 0 {
		t.Error("a request outlives the engine")
	}
}

func TestInflightWaits(t *testing.T) {
	var f inflight
	if !f.wait(t.Context()) {
		t.Error("nothing in flight, and it waits")
	}
	f.add(2)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if f.wait(ctx) {
		t.Error("two in flight, and it does not wait")
	}
	ended := make(chan bool)
	go func() { ended <- f.wait(t.Context()) }()
	f.add(-1)
	f.add(-1)
	if !<-ended {
		t.Error("not told that nothing is in flight")
	}
}

func TestInfoDescribesTheEngine(t *testing.T) {
	e := start(t, fast())
	post(t, e.URL()+"/v1/completions", `{"prompt":"`+words(40)+`","max_tokens":1}`)
	idle(t, e)
	_, body := do(t, http.MethodGet, e.URL()+"/control/info", "")
	info := decode[Info](t, body)
	if info.WorkerID != e.ID() || info.URL != e.URL() || info.BlockSize != 16 || info.BlocksCached != 2 || info.BlocksUsed != 0 || info.KVEvents != "" {
		t.Errorf("info %s", body)
	}
	if resp, _ := do(t, http.MethodPost, e.URL()+"/control/clear-cache", ""); resp.StatusCode != http.StatusNoContent {
		t.Errorf("clear-cache: %d", resp.StatusCode)
	}
	if n := e.Info().BlocksCached; n != 0 {
		t.Errorf("%d blocks after a clear", n)
	}
}
