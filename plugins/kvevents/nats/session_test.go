package nats

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
)

// fakeDelivery is what a broker sends, message by message; the zero item is a
// silence.
type fakeDelivery struct {
	jetstream.MessagesContext
	items []*fakeMsg
}

func (d *fakeDelivery) Next(...jetstream.NextOpt) (jetstream.Msg, error) {
	if len(d.items) == 0 {
		return nil, jetstream.ErrMsgIteratorClosed
	}
	m := d.items[0]
	d.items = d.items[1:]
	if m == nil {
		return nil, natsgo.ErrTimeout
	}
	return m, nil
}

type fakeMsg struct {
	jetstream.Msg
	stream, consumer, pending uint64
	data                      []byte
}

func (m *fakeMsg) Subject() string { return Subject("w:1", 0) }
func (m *fakeMsg) Data() []byte    { return m.data }
func (m *fakeMsg) Metadata() (*jetstream.MsgMetadata, error) {
	if m.stream == 0 {
		return nil, jetstream.ErrNotJSMessage
	}
	return &jetstream.MsgMetadata{
		Sequence: jetstream.SequencePair{Stream: m.stream, Consumer: m.consumer}, NumPending: m.pending, Timestamp: time.Now(),
	}, nil
}

func TestDelivery(t *testing.T) {
	a := testfleet.NewPrompt(1, 3)
	part := func(stream, consumer, pending uint64, i int) *fakeMsg {
		return &fakeMsg{stream: stream, consumer: consumer, pending: pending, data: vllm(a.Stored(1, i, i+1))}
	}
	for _, c := range []struct {
		name  string
		items []*fakeMsg
		to    uint64
		up    bool
		err   error
		depth int
		gaps  float64
	}{
		{"in order to the end", []*fakeMsg{part(1, 1, 1, 0), part(2, 2, 0, 1)}, 2, true, jetstream.ErrMsgIteratorClosed, 2, 0},
		{"the past is not over", []*fakeMsg{part(1, 1, 1, 0)}, 2, false, jetstream.ErrMsgIteratorClosed, 1, 0},
		{"its end was deleted meanwhile", []*fakeMsg{part(1, 1, 0, 0)}, 2, true, jetstream.ErrMsgIteratorClosed, 1, 0},
		{"it falls silent before its end", []*fakeMsg{part(1, 1, 1, 0), nil}, 2, true, jetstream.ErrMsgIteratorClosed, 1, 0},
		{"one is lost on the way", []*fakeMsg{part(1, 1, 0, 0), part(3, 3, 0, 2)}, 0, true, errSkipped, 1, 0},
		{"the stream no longer has one", []*fakeMsg{part(1, 1, 0, 0), part(3, 2, 0, 0)}, 0, true, jetstream.ErrMsgIteratorClosed, 1, 1},
		{"one comes twice", []*fakeMsg{part(1, 1, 0, 0), part(1, 2, 0, 0), part(2, 3, 0, 1)}, 0, true, jetstream.ErrMsgIteratorClosed, 2, 0},
		{"one is not the stream's", []*fakeMsg{{}, part(1, 1, 0, 0)}, 0, true, jetstream.ErrMsgIteratorClosed, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newView(t, Config{NoMarks: true})
			v.set(worker("w:1", "1"))
			v.sub.reconcile(v.store.Snapshot(), true)
			v.sub.pos.contained = true
			up, err := v.sub.receive(t.Context(), &fakeDelivery{items: c.items}, c.to)
			if up != c.up || !errors.Is(err, c.err) {
				t.Errorf("up %t, error %v, want %t and %v", up, err, c.up, c.err)
			}
			if d := v.depth("w:1", a); d != c.depth || value(v.sub.metrics.gaps) != c.gaps {
				t.Errorf("%d blocks and %v gaps, want %d and %v", d, value(v.sub.metrics.gaps), c.depth, c.gaps)
			}
		})
	}
}

// Which of a worker's past counts, when the router starts.
func TestJudgement(t *testing.T) {
	noted, oldest := time.Unix(1000, 0), time.Unix(500, 0)
	for _, c := range []struct {
		name      string
		now       string // the incarnation that discovery gives
		marks     map[string]mark
		truncated bool
		since     string // never, noted, now
		whole     bool
		note      bool
	}{
		{"never noted", "1", nil, false, "never", true, true},
		{"never noted, and the stream lost its beginning", "1", nil, true, "never", false, true},
		{"noted", "1", map[string]mark{"w:1": {"1", noted}}, false, "noted", true, false},
		{"noted later than the stream begins", "1", map[string]mark{"w:1": {"1", noted}}, true, "noted", true, false},
		{"noted without a time", "1", map[string]mark{"w:1": {"1", time.Time{}}}, true, "never", false, false},
		{"noted as another process", "2", map[string]mark{"w:1": {"1", noted}}, false, "now", false, true},
		{"discovery cannot tell", "", map[string]mark{"w:1": {"1", noted}}, false, "never", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newView(t, Config{})
			v.set(worker("w:1", c.now))
			v.sub.reconcile(v.store.Snapshot(), true)
			v.sub.skew = time.Hour // the broker's clock is ahead
			v.sub.pos.truncated, v.sub.pos.oldest = c.truncated, oldest
			if c.marks != nil {
				v.sub.marks = c.marks
			}
			v.sub.judge()
			p := v.sub.peers["w:1"]
			got := "never"
			switch {
			case p.since.Equal(noted):
				got = "noted"
			case time.Until(p.since) > 59*time.Minute:
				got = "now"
			case !p.since.IsZero():
				got = p.since.String()
			}
			if whole := p.feeds[0].next == 0; got != c.since || whole != c.whole || p.dirty != c.note {
				t.Errorf("counts since %s, whole %t, to be noted %t, want %s, %t, %t", got, whole, p.dirty, c.since, c.whole, c.note)
			}
		})
	}
}

func TestANewProcessOfWhichTooMuchWasSaidIsMarked(t *testing.T) {
	r := newRig(t, nil)
	cfg := r.config()
	cfg.HoldMessages = 2
	v := watch(t, cfg, worker("w:1", "1"))
	v.live()
	for i := range 5 { // all within Lead: they may be the next process's
		r.emit("w:1", 0, vllm(testfleet.NewPrompt(uint32(i), 1).Stored(1, 0, 1)))
	}
	v.wantDepth("the last", "w:1", testfleet.NewPrompt(4, 1), 1)
	if value(v.sub.metrics.heldDropped) != 0 {
		t.Error("events that were applied count as dropped")
	}
	v.set(worker("w:1", "2"))
	v.wantDepth("what is not kept to go", "w:1", testfleet.NewPrompt(0, 1), 0)
	v.wantDepth("what is kept to stay", "w:1", testfleet.NewPrompt(4, 1), 1)
	if !v.index.Feed("w:1").Partial() {
		t.Error("the view does not say that it may lack something")
	}
}

// Two routers see a worker change, one later than the other: the first note
// stays, and a third router goes by it.
func TestTheFirstNoteOfAProcessStays(t *testing.T) {
	r := newRig(t, nil)
	a := watch(t, r.config(), worker("w:1", "1"))
	b := watch(t, r.config(), worker("w:1", "1"))
	for _, v := range []*view{a, b} {
		v.live()
		v.noted()
	}
	if m := r.mark("w:1"); m.Incarnation != "1" || !m.Since.IsZero() {
		t.Fatalf("the note of a worker that was there before is %+v", m)
	}
	a.set(worker("w:1", "2"))
	testkit.Until(t, "the note", func() bool { return r.mark("w:1").Incarnation == "2" })
	first := r.mark("w:1")
	b.set(worker("w:1", "2"))
	testkit.Until(t, "the other router to agree", func() bool {
		b.sub.mu.Lock()
		defer b.sub.mu.Unlock()
		return b.sub.marks["w:1"] == first
	})
	b.noted()
	if m := r.mark("w:1"); m != first {
		t.Errorf("the note was %+v and is %+v", first, m)
	}
}

func (r *rig) mark(id string) (m mark) {
	r.tb.Helper()
	marks, err := readMarks(r.tb.Context(), r.js)
	if err != nil {
		r.tb.Fatal(err)
	}
	return marks[id]
}

func TestADeletedConsumerIsMadeAnew(t *testing.T) {
	r := newRig(t, nil)
	v := watch(t, r.config(), worker("w:1", "1"))
	a := testfleet.NewPrompt(1, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 1)))
	v.wantDepth("the event", "w:1", a, 1)
	s, err := r.js.Stream(t.Context(), Stream)
	if err != nil {
		t.Fatal(err)
	}
	for name := range s.ConsumerNames(t.Context()).Name() {
		if err := s.DeleteConsumer(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	r.emit("w:1", 0, vllm(a.Stored(1, 1, 2)))
	v.wantDepth("the event after it", "w:1", a, 2)
	if v.index.Feed("w:1").Partial() {
		t.Error("the view says that it lacks something")
	}
}

// A user who may read events and nothing else is served, without notes and
// bucket.
func TestAUserWhoMayOnlyReadEvents(t *testing.T) {
	r := newRig(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "relay", Password: "r"},
			{Username: "router", Password: "secret", Permissions: &server.Permissions{Publish: &server.SubjectPermission{
				Allow: []string{"$JS.API.STREAM.INFO." + Stream, "$JS.API.CONSUMER.*." + Stream + ".>", "$JS.API.CONSUMER.MSG.NEXT." + Stream + ".>"},
			}}},
		}
		o.NoAuthUser = "relay"
	})
	cfg := r.config()
	cfg.Broker.Server = "router:secret@" + r.broker.URL[len("nats://"):]
	cfg.ConnectWait = 500 * time.Millisecond
	v := watch(t, cfg, worker("w:1", "1"))
	a := testfleet.NewPrompt(1, 2)
	r.emit("w:1", 0, vllm(a.Stored(1, 0, 2)))
	v.wantDepth("the events", "w:1", a, 2)
	v.live()
	if v.log.Count("secret") > 0 {
		t.Error("the password is in the log")
	}
}

func TestATokenThatIsRefused(t *testing.T) {
	r := newBroker(t, func(o *server.Options) { o.Authorization = "good" })
	cfg := r.config()
	cfg.Broker.Token = "bad"
	v := watch(t, cfg, worker("w:1", "1"))
	testkit.Until(t, "the refusal", func() bool { return v.log.Count("Authorization Violation") > 0 })
	v.stop()
	cfg.Broker.Token = "good"
	v = watch(t, cfg, worker("w:1", "1"))
	testkit.Until(t, "the search for the stream", func() bool { return v.log.Count("no such stream yet") > 0 })
}

// Reconciling is for the discovery's pace: hundreds of workers at once, with
// what was held of each.
func TestAFleetThatAppearsAtOnce(t *testing.T) {
	v := newView(t, Config{})
	v.sub.reconcile(v.store.Snapshot(), true)
	var list []*fleet.Worker
	for i := range 500 {
		id := fmt.Sprintf("w:%d", i)
		list = append(list, worker(id, "1"))
		p := testfleet.NewPrompt(uint32(i), 2)
		v.sub.take(t.Context(), arrival{subject: Subject(id, 0), data: sglang(p.Stored(1, 0, 2)), stamp: time.Now()})
	}
	v.set(list...)
	v.sub.reconcile(v.store.Snapshot(), false)
	for i, w := range list {
		if d := v.depth(w.ID, testfleet.NewPrompt(uint32(i), 2)); d != 2 {
			t.Fatalf("%s has %d blocks, want what was held", w.ID, d)
		}
	}
	v.set()
	v.sub.reconcile(v.store.Snapshot(), false)
	if v.sub.held != 0 || v.sub.heldMsgs != 0 || v.sub.unknown != 500 {
		t.Errorf("%d bytes of %d messages are held of %d workers that left", v.sub.held, v.sub.heldMsgs, v.sub.unknown)
	}
	v.sub.cfg.HoldFor = time.Nanosecond
	v.sub.sweep()
	if len(v.sub.peers) != 0 || v.sub.unknown != 0 {
		t.Errorf("%d workers that left are kept", len(v.sub.peers))
	}
}

// The picker forgets targets at its own pace: what comes between is no harm.
func TestATargetThatIsForgottenUnderway(t *testing.T) {
	v := newView(t, Config{})
	v.set(worker("w:1", "1"))
	v.sub.reconcile(v.store.Snapshot(), true)
	a := testfleet.NewPrompt(1, 3)
	send := func(b *kvindex.Batch) {
		v.sub.take(context.Background(), arrival{subject: Subject("w:1", 0), data: vllm(b), stamp: time.Now()})
	}
	send(a.Stored(1, 0, 1))
	v.index.Forget("w:1")
	send(a.Stored(1, 1, 2)) // nobody keeps it
	v.index.Instance("w:1")
	send(a.Stored(1, 0, 3))
	if d := v.depth("w:1", a); d != 3 {
		t.Errorf("%d blocks after the target is back, want 3", d)
	}
	if !v.index.Feed("w:1").Partial() {
		t.Error("the view does not say that it lacks what came before")
	}
}
