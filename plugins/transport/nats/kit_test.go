package nats

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*Server).Start.func1"),
	)
}

// soon bounds what must happen at once; a busy machine is slow.
const soon = 10 * time.Second

// start runs a transport against the broker at url and waits for its connection.
func start(t *testing.T, url string, edit func(*Config)) *Transport {
	t.Helper()
	tr := begin(t, url, edit)
	testkit.Until(t, "a connection", tr.Connected)
	return tr
}

// begin runs a transport and does not wait.
func begin(t *testing.T, url string, edit func(*Config)) *Transport {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Broker.Server = url
	if edit != nil {
		edit(&cfg)
	}
	tr, err := New(cfg, slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelError})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := tr.buffered.Load(); n != 0 {
			t.Errorf("%d bytes are still accounted for", n)
		}
	})
	return tr
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

// engine starts a simulated worker and waits until it takes requests.
func engine(t *testing.T, url string, edit func(*simengine.Config)) *simengine.Engine {
	t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.NATS.Server = url
	cfg.KV.Port = -1
	cfg.Time.DecodeStep, cfg.Time.PrefillRate = 200*time.Microsecond, 1e6
	if edit != nil {
		edit(&cfg)
	}
	e, err := simengine.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	select {
	case <-e.Subscribed():
	case <-time.After(soon):
		t.Fatal("the engine does not subscribe")
	}
	return e
}

// post is a chat request with the given body.
func post(body string) *forward.Request {
	return &forward.Request{
		ID: "r1", Method: http.MethodPost, Target: "/v1/chat/completions",
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"r1"}}, Body: []byte(body),
	}
}

// chat is a request for n tokens.
func chat(n int, stream bool) *forward.Request {
	return post(`{"model":"sim-model","messages":[{"role":"user","content":"hello there"}],"max_tokens":` +
		strconv.Itoa(n) + `,"ignore_eos":true,"stream":` + strconv.FormatBool(stream) + `}`)
}

// reply is what came of a request.
type reply struct {
	status int
	head   http.Header
	body   string
	err    error
	stage  forward.Stage
}

// do sends a request and reads its answer to the end.
func do(ctx context.Context, tr forward.Transport, w *fleet.Worker, req *forward.Request) reply {
	resp, err := tr.Do(ctx, w, req)
	var out reply
	if err == nil {
		out.status, out.head = resp.Status, resp.Header
		var b []byte
		b, err = io.ReadAll(resp.Body)
		out.body = string(b)
		_ = resp.Body.Close()
	}
	out.err = err
	if failed, ok := errors.AsType[*forward.Error](err); ok {
		out.stage = failed.Stage
	}
	return out
}

// scripted is a worker whose frames a test sends by hand.
type scripted struct {
	t       *testing.T
	nc      *nats.Conn
	worker  *fleet.Worker
	reqs    chan *nats.Msg
	cancels chan string
}

const scriptedID = "10.0.0.1:30000"

func script(t *testing.T, broker *testfleet.NATS) *scripted {
	t.Helper()
	s := &scripted{
		t: t, nc: broker.Connect(t), reqs: make(chan *nats.Msg, 256), cancels: make(chan string, 256),
		worker: &fleet.Worker{ID: scriptedID, Transport: "nats", DPRank: -1},
	}
	s.subscribe(wire.RequestSubject(scriptedID), func(m *nats.Msg) { s.reqs <- m })
	s.subscribe(wire.CancelSubject(scriptedID), func(m *nats.Msg) {
		if m.Reply == "" { // probes have one
			s.cancels <- string(m.Data)
		}
	})
	return s
}

func (s *scripted) subscribe(subject string, cb nats.MsgHandler) {
	s.t.Helper()
	if _, err := s.nc.Subscribe(subject, cb); err != nil {
		s.t.Fatal(err)
	}
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
}

// request waits for the next request.
func (s *scripted) request() *nats.Msg {
	s.t.Helper()
	select {
	case m := <-s.reqs:
		return m
	case <-time.After(soon):
		s.t.Fatal("no request came")
		return nil
	}
}

// canceled waits for the next cancelation.
func (s *scripted) canceled() string {
	s.t.Helper()
	select {
	case inbox := <-s.cancels:
		return inbox
	case <-time.After(soon):
		s.t.Fatal("no cancelation came")
		return ""
	}
}

// quiet checks that no cancelation has been sent so far.
func (s *scripted) quiet() {
	s.t.Helper()
	if err := s.nc.Flush(); err != nil {
		s.t.Fatal(err)
	}
	select {
	case inbox := <-s.cancels:
		s.t.Errorf("a cancelation for %s", inbox)
	default:
	}
}

// say publishes a message with the given headers, as "name: value".
func (s *scripted) say(inbox, data string, headers ...string) {
	s.t.Helper()
	m := &nats.Msg{Subject: inbox, Data: []byte(data)}
	for i := 0; i < len(headers); i += 2 {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[headers[i]] = []string{headers[i+1]}
	}
	if err := s.nc.PublishMsg(m); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scripted) data(inbox, data string) { s.t.Helper(); s.say(inbox, data, "rs-type", "data") }

func (s *scripted) done(inbox, status string) {
	s.t.Helper()
	s.say(inbox, "", "rs-type", "done", "rs-status", status)
}

func (s *scripted) fails(inbox, text string) { s.t.Helper(); s.say(inbox, text, "rs-type", "error") }

// async sends a request from a goroutine of its own.
func (s *scripted) async(ctx context.Context, tr forward.Transport, req *forward.Request) <-chan reply {
	out := make(chan reply, 1)
	go func() { out <- do(ctx, tr, s.worker, req) }()
	return out
}

// get waits for an answer.
func get(t *testing.T, from <-chan reply) reply {
	t.Helper()
	select {
	case r := <-from:
		return r
	case <-time.After(soon):
		t.Fatal("no answer came")
		return reply{}
	}
}

// script0 is a worker that nothing stands behind.
func script0() *fleet.Worker { return &fleet.Worker{ID: scriptedID, Transport: "nats", DPRank: -1} }

// overHTTP is a fallback.
type overHTTP struct{}

// Do posts a request to the worker's URL.
func (overHTTP) Do(ctx context.Context, w *fleet.Worker, req *forward.Request) (*forward.Response, error) {
	r, err := http.NewRequestWithContext(ctx, req.Method, w.URL+req.Target, bytes.NewReader(req.Body))
	if err != nil {
		return nil, &forward.Error{Stage: forward.StageWrite, Err: err}
	}
	r.Close = true
	r.Header = req.Header.Clone()
	resp, err := http.DefaultClient.Do(r) //nolint:bodyclose // the caller's
	if err != nil {
		return nil, &forward.Error{Stage: forward.StageDial, Err: err}
	}
	return &forward.Response{Status: resp.StatusCode, Header: resp.Header, Length: resp.ContentLength, Body: resp.Body}, nil
}
