package simengine

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/wire"
)

// asker is a router's side of the request transport.
type asker struct {
	t   *testing.T
	nc  *nats.Conn
	sub *nats.Subscription
	in  string
	e   *Engine
}

// natsEngine starts a worker on the broker and a router for it.
func natsEngine(t *testing.T, broker *testfleet.NATS, edit func(*Config)) *asker {
	t.Helper()
	cfg := DefaultConfig()
	cfg.KV.Port, cfg.NATS.Server = -1, broker.URL
	cfg.Time.DecodeStep = time.Millisecond
	if edit != nil {
		edit(&cfg)
	}
	e, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	<-e.Subscribed()
	a := &asker{t: t, nc: broker.Connect(t), in: nats.NewInbox(), e: e}
	if a.sub, err = a.nc.SubscribeSync(a.in); err != nil {
		t.Fatal(err)
	}
	return a
}

// ask publishes an envelope; withReply sends the inbox as the reply subject,
// else as the header.
func (a *asker) ask(envelope string, withReply bool) {
	a.t.Helper()
	m := &nats.Msg{Subject: wire.RequestSubject(a.e.ID()), Data: []byte(envelope)}
	if withReply {
		m.Reply = a.in
	} else {
		m.Header = nats.Header{wire.HeaderInbox: {a.in}}
	}
	if err := a.nc.PublishMsg(m); err != nil {
		a.t.Fatal(err)
	}
}

// next returns the next message's kind, status and text.
func (a *asker) next() (r wire.Reply) {
	a.t.Helper()
	m, err := a.sub.NextMsgWithContext(deadline(a.t))
	if err != nil && m == nil {
		a.t.Fatal(err)
	}
	return wire.ParseReply(m.Header, m.Data)
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

const natsChat = `{"path":"/v1/chat/completions","stream":STREAM,"headers":HEADERS,"migratable":MIG,"body":{"model":"sim-model","max_tokens":3,"ignore_eos":true,"stream":STREAM,"messages":[{"role":"user","content":"hi"}]}}`

func natsEnvelope(stream, headers, migratable string) string {
	return strings.NewReplacer("STREAM", stream, "HEADERS", headers, "MIG", migratable).Replace(natsChat)
}

func TestAnswersAreFramedAsInferasWorkerDoes(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	for _, maxPending := range []int{0, 4} {
		a := natsEngine(t, broker, func(c *Config) { c.NATS.MaxPending = maxPending })
		a.ask(natsEnvelope("false", "null", "false"), false)
		data := a.next()
		if data.Kind != wire.ReplyData || !json.Valid(data.Data) {
			t.Errorf("max pending %d: unary: %+v %s", maxPending, data, data.Data)
		}
		if done := a.next(); done.Kind != wire.ReplyDone || done.Status != 200 || done.Seq != -1 {
			t.Errorf("max pending %d: unary end: %+v", maxPending, done)
		}
		a.ask(natsEnvelope("true", "null", "false"), false)
		var body strings.Builder
		r := a.next()
		for ; r.Kind == wire.ReplyData; r = a.next() {
			body.WriteString(string(r.Data))
		}
		if r.Kind != wire.ReplyDone || !strings.HasPrefix(body.String(), "data: {") || !strings.HasSuffix(body.String(), "data: [DONE]\n\n") {
			t.Errorf("max pending %d: stream: %q, %+v", maxPending, body.String(), r)
		}
		if err := a.nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if n, _, err := a.sub.Pending(); err != nil || n != 0 {
			t.Errorf("max pending %d: %d messages behind the end, %v; want none without a reply subject", maxPending, n, err)
		}
		if w := a.e.Worker(); w.Transport != "nats" {
			t.Errorf("registered with transport %q", w.Transport)
		}
	}
}

func TestAReplySubjectBringsAnEmptyMessageBehindTheEnd(t *testing.T) {
	a := natsEngine(t, testfleet.StartNATS(t, nil), nil)
	a.ask(natsEnvelope("false", `{"X-Request-Id":"r9","X-Data-Parallel-Rank":"2"}`, "false"), true)
	for _, want := range []wire.ReplyKind{wire.ReplyData, wire.ReplyDone, wire.ReplyEmpty} {
		if r := a.next(); r.Kind != want {
			t.Errorf("%+v, want kind %d", r, want)
		}
	}
	testkit.Until(t, "the end", func() bool { return len(a.e.Receipts()) == 1 && a.e.Receipts()[0].Outcome == OutcomeComplete })
	rs := a.e.Receipts()
	if len(rs) != 1 || rs[0].RequestID != "r9" || rs[0].Headers["x-data-parallel-rank"] != "2" {
		t.Errorf("receipts %+v", rs)
	}
}

func TestFailuresAreToldAsInferasWorkerDoes(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	a := natsEngine(t, broker, func(c *Config) { c.NATS.IdleTimeout, c.ControlPort = 200*time.Millisecond, 0 })
	for _, tc := range []struct {
		name, fault, want string
		status            int
	}{
		{"an engine error", "status:500", "", 500},
		{"a silent engine", "hang_head", "", 0},
		{"a cut answer", "cut_after:0", "", 0},
	} {
		a.ask(natsEnvelope("false", `{"X-Sim-Fault":"`+tc.fault+`"}`, "false"), false)
		r := a.next()
		if tc.status != 0 {
			if r.Kind != wire.ReplyData {
				t.Errorf("%s: %+v", tc.name, r)
			}
			r = a.next()
		}
		if r.Status != tc.status || (tc.status == 0) != (r.Kind == wire.ReplyError) {
			t.Errorf("%s: %+v %q", tc.name, r, r.Data)
		}
	}
	if err := a.e.SetFault(Fault{Mode: "refuse"}); err != nil {
		t.Fatal(err)
	}
	a.e.nats.client.CloseIdleConnections()
	a.ask(natsEnvelope("false", "null", "false"), false)
	if r := a.next(); r.Kind != wire.ReplyError || string(r.Data) != "All connection attempts failed" {
		t.Errorf("a closed engine: %+v %q", r, r.Data)
	}
	a.ask(`{"body":[]}`, false)
	if r := a.next(); r.Kind != wire.ReplyError || len(r.Data) == 0 {
		t.Errorf("a broken envelope: %+v", r)
	}
}

func TestACancelationEndsItsRequestAndNoOther(t *testing.T) {
	a := natsEngine(t, testfleet.StartNATS(t, nil), nil)
	cancel := func(inbox string) {
		if err := a.nc.Publish(wire.CancelSubject(a.e.ID()), []byte(inbox)); err != nil {
			t.Fatal(err)
		}
	}
	cancel("_INBOX.none") // of nothing yet
	a.ask(natsEnvelope("true", `{"X-Sim-Fault":"hang_head"}`, "false"), false)
	testkit.Until(t, "the request", func() bool { return len(a.e.Receipts()) == 1 })
	cancel(a.in + ".probe")
	cancel("_INBOX.other")
	cancel(a.in)
	if r := a.next(); r.Kind != wire.ReplyError || string(r.Data) != wire.NoticeCancelled {
		t.Errorf("%+v %q", r, r.Data)
	}
	testkit.Until(t, "the abort", func() bool { return a.e.Receipts()[0].Outcome == OutcomeAborted })
	cancel(a.in) // of a request that has ended
	a.in = nats.NewInbox()
	var err error
	if a.sub, err = a.nc.SubscribeSync(a.in); err != nil {
		t.Fatal(err)
	}
	a.ask(natsEnvelope("false", "null", "false"), false)
	if r := a.next(); r.Kind != wire.ReplyData {
		t.Errorf("after a late cancelation: %+v %q", r, r.Data)
	}
}

func TestADrainHandsBackWhatCanGoOnElsewhere(t *testing.T) {
	for migratable, want := range map[string]string{"true": wire.NoticeDraining, "false": wire.NoticeCancelled} {
		a := natsEngine(t, testfleet.StartNATS(t, nil), func(c *Config) { c.DrainTimeout = 100 * time.Millisecond })
		a.ask(natsEnvelope("true", `{"X-Sim-Fault":"hang_head"}`, migratable), false)
		testkit.Until(t, "the request", func() bool { return len(a.e.Receipts()) == 1 })
		if err := a.e.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := a.next(); r.Kind != wire.ReplyError || string(r.Data) != want {
			t.Errorf("migratable %s: %+v %q, want %q", migratable, r, r.Data, want)
		}
		if n, _, err := a.sub.Pending(); err != nil || n != 0 {
			t.Errorf("migratable %s: %d more messages, %v", migratable, n, err)
		}
	}
}

func TestAWorkerWaitsForItsBrokerBeforeItIsSubscribed(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	broker.Stop(t)
	cfg := DefaultConfig()
	cfg.KV.Port, cfg.NATS.Server = -1, broker.URL
	e, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	select {
	case <-e.Subscribed():
		t.Fatal("subscribed without a broker")
	default:
	}
	broker.Start(t)
	select {
	case <-e.Subscribed():
	case <-deadline(t).Done():
		t.Fatal("not subscribed with a broker")
	}
}
