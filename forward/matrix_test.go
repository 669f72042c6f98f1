package forward_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"

	httptransport "pointsman/plugins/transport/http"
	natstransport "pointsman/plugins/transport/nats"
)

// ending is how a client sees an answer end.
type ending string

const (
	whole     ending = "whole"    // a complete object, or a stream with the API's own end
	errored   ending = "errored"  // a stream that ends in one error event
	refused   ending = "refused"  // a status of 400 or above with an error object
	abandoned ending = "aborted"  // a body that breaks off
	invalid   ending = "invalid!" // anything else: two ends, text behind the end, half an event
)

// expectation is what a fault must look like to a client.
type expectation struct {
	stream, unary ending
	receipts      int // deliveries of one request, at most
}

// matrix holds every fault mode of the simulated engine, with one worker and no
// retry, so that nothing hides how the failure itself is told.
var matrix = map[string]expectation{
	"ok":                        {whole, whole, 1},
	"refuse":                    {refused, refused, 1},
	"reset":                     {refused, refused, 1},
	"hang_accept":               {refused, refused, 1},
	"hang_head":                 {refused, refused, 1},
	"status:500":                {refused, refused, 1},
	"status:429":                {refused, refused, 1},
	"status:400":                {refused, refused, 1},
	"status_then_hang_body:200": {refused, refused, 1},
	"cut_after:3":               {errored, refused, 1},
	"hang_after:3":              {errored, refused, 1},
	"close_delim_cut:3":         {errored, refused, 1},
	"no_done":                   {errored, whole, 1},
	"two_done":                  {whole, whole, 1},
	"error_event:3":             {errored, refused, 1},
	"error_event_then_done:3":   {errored, refused, 1},
	"data_after_done":           {whole, whole, 1},
	"partial_utf8":              {whole, whole, 1},
	"huge_line:300000":          {whole, whole, 1},
	"slow_token:1":              {whole, whole, 1},
	"1xx":                       {whole, whole, 1},
	"trailers":                  {whole, whole, 1},
	"gzip":                      {whole, whole, 1},
	"keepalive_comments":        {whole, whole, 1},
}

func TestEachFaultModeOverEachTransportAndAPI(t *testing.T) {
	t.Parallel()
	broker := testfleet.StartNATS(t, nil)
	for _, transport := range []string{"http", "h2c", "nats"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			cell := newCell(t, transport, broker.URL)
			for mode, want := range matrix {
				if transport == "h2c" && mode == "close_delim_cut:3" {
					want.unary = invalid // HTTP/2 has no such end: the engine itself says that half an object is all
				}
				cell.reconnect(t)
				fatal(t, cell.engine.SetFault(simengine.Fault{Mode: mode}))
				cell.patience(t, strings.Contains(mode, "hang"))
				for path, body := range matrixBodies {
					if transport == "nats" && strings.Contains(mode, "hang") && path != "/v1/chat/completions" {
						continue // its timer is not made shorter for them, and knows no APIs
					}
					cell.check(t, mode, path, strings.Replace(body, "STREAM", "true", 1), want.stream, want.receipts)
					cell.check(t, mode, path, strings.Replace(body, "STREAM", "false", 1), want.unary, want.receipts)
				}
			}
		})
	}
}

var matrixBodies = map[string]string{
	"/v1/chat/completions": `{"model":"M","stream":STREAM,"max_tokens":8,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`,
	"/v1/completions":      `{"model":"M","stream":STREAM,"max_tokens":8,"ignore_eos":true,"prompt":"hi"}`,
	"/v1/responses":        `{"model":"M","stream":STREAM,"max_output_tokens":8,"ignore_eos":true,"input":"hi"}`,
	"/v1/messages":         `{"model":"M","stream":STREAM,"max_tokens":8,"ignore_eos":true,"messages":[{"role":"user","content":"hi"}]}`,
}

// cell is a forwarder in front of one simulated engine.
type cell struct {
	engine *simengine.Engine
	url    string
	reg    *prometheus.Registry
	picker *picker.Picker
	client *http.Client
	server *forward.Server
	cfg    forward.Config
}

// patience makes the idle timer short for engines that hang; NATS has its own.
func (c *cell) patience(t *testing.T, short bool) {
	t.Helper()
	cfg := c.cfg
	cfg.IdleTimeout = 15 * time.Second
	if short {
		cfg.IdleTimeout = 200 * time.Millisecond
	}
	fatal(t, c.server.SetConfig(cfg))
}

func newCell(t *testing.T, transport, broker string) *cell {
	t.Helper()
	ec := simengine.DefaultConfig()
	ec.KV.Port = -1
	ec.Time.DecodeStep, ec.Time.PrefillRate = 200*time.Microsecond, 1e6
	tr := map[string]forward.Transport{}
	hc := httptransport.DefaultConfig()
	switch transport {
	case "nats":
		ec.NATS.Server = broker
		nc := natstransport.DefaultConfig()
		nc.Broker.Server, nc.IdleTimeout = broker, time.Second
		nt, err := natstransport.New(nc, slog.New(slog.DiscardHandler))
		fatal(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- nt.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-ended })
		testkit.Until(t, "the broker", nt.Connected)
		tr["nats"] = nt
	case "h2c":
		hc.Protocol = httptransport.H2C
	}
	ht, err := httptransport.New(hc)
	fatal(t, err)
	t.Cleanup(ht.Close)
	tr["http"] = ht
	e, err := simengine.Start(t.Context(), ec)
	fatal(t, err)
	t.Cleanup(e.Kill)
	if transport == "nats" {
		<-e.Subscribed()
	}
	store := new(fleet.Store)
	fleet.NewFeed(store).Replace([]*fleet.Worker{e.Worker()})
	bc := breaker.DefaultConfig()
	p, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(bc))
	fatal(t, err)
	cfg := forward.DefaultConfig()
	cfg.MaxRetries = 0
	preparer := prompt.NewPreparer(prompt.Config{}, nil)
	server, err := forward.New(cfg, forward.Deps{
		Picker: p, Store: store, Preparer: func() *prompt.Preparer { return preparer },
		Transports: tr, Log: slog.New(slog.DiscardHandler),
	})
	fatal(t, err)
	c := &cell{engine: e, reg: prometheus.NewRegistry(), picker: p, server: server, cfg: cfg}
	fatal(t, server.Register(c.reg))
	w := &world{t: t, server: server}
	w.serve()
	c.url = w.url
	c.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// reconnect makes sure that no connection is left which the mode before has broken:
// with no retry, a request on one would fail for it.
func (c *cell) reconnect(t *testing.T) {
	t.Helper()
	fatal(t, c.engine.SetFault(simengine.Fault{}))
	total := func() (n int) {
		for _, one := range c.outcomes(t) {
			n += one
		}
		return n
	}
	body := `{"model":"` + c.engine.Worker().Model + `","max_tokens":1,"prompt":"x"}`
	for deadline := time.Now().Add(5 * time.Second); ; {
		before := total()
		resp, err := c.client.Post(c.url+"/v1/completions", "application/json", strings.NewReader(body))
		fatal(t, err)
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		testkit.Until(t, "the request is counted", func() bool { return total() > before })
		if resp.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the engine is not reached: %d", resp.StatusCode)
		}
	}
}

// check sends one request and looks at its end from all sides.
func (c *cell) check(t *testing.T, mode, path, body string, want ending, deliveries int) {
	t.Helper()
	c.engine.ClearReceipts()
	before := c.outcomes(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	body = strings.Replace(body, `"M"`, `"`+c.engine.Worker().Model+`"`, 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, strings.NewReader(body))
	fatal(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v, receipts %+v", mode, body, err, c.engine.Receipts())
	}
	raw, rerr := io.ReadAll(resp.Body)
	resp.Body.Close()
	stream := strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream")
	if got := endingOf(resp.StatusCode, stream, path, string(raw), rerr); got != want {
		t.Errorf("%s %s: %s, want %s: status %d, %v, %.600q", mode, body, got, want, resp.StatusCode, rerr, tail(raw))
	}
	if host := c.engine.Worker().Host; strings.Contains(string(raw), "127.0.0.1") || want != whole && strings.Contains(string(raw), c.engine.Worker().ID) {
		t.Errorf("%s: the answer tells of %s: %s", mode, host, tail(raw))
	}
	var all []simengine.Receipt
	var outcome map[string]int
	testkit.Within(t, 2*time.Second, mode+" "+body+": the end at the engine", func() bool {
		all, outcome = c.engine.Receipts(), c.outcomes(t)
		for name, n := range before {
			if outcome[name] -= n; outcome[name] == 0 {
				delete(outcome, name)
			}
		}
		running := slices.ContainsFunc(all, func(r simengine.Receipt) bool { return r.Outcome == simengine.OutcomeRunning })
		return !running && len(outcome) > 0 && len(c.picker.Held(time.Now().Add(time.Hour), 0)) == 0
	}, func() string { return fmt.Sprintf("%+v", all) })
	if len(all) > deliveries {
		t.Errorf("%s %s: %d deliveries, want %d", mode, body, len(all), deliveries)
	}
	if !counted(outcome, want) {
		t.Errorf("%s %s: counted as %v, seen as %s", mode, body, outcome, want)
	}
}

// outcomes returns how many requests have ended with each outcome.
func (c *cell) outcomes(t *testing.T) map[string]int {
	t.Helper()
	families, err := c.reg.Gather()
	fatal(t, err)
	out := map[string]int{}
	for _, f := range families {
		if f.GetName() != "infera_request_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" {
					out[l.GetValue()] += int(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return out
}

// counted reports whether one request was counted as what its client has seen.
func counted(outcome map[string]int, want ending) bool {
	classes := map[ending][]string{
		whole: {"ok"}, errored: {"truncated"}, invalid: {"ok"}, abandoned: {"truncated"}, refused: {"4xx", "5xx", "error"},
	}
	n := 0
	for _, class := range classes[want] {
		n += outcome[class]
	}
	return n == 1 && len(outcome) == 1
}

func tail(b []byte) []byte { return b[max(0, len(b)-600):] }

// endingOf classifies what a client got.
func endingOf(status int, stream bool, path, body string, rerr error) ending {
	switch {
	case rerr != nil:
		return abandoned
	case status >= 400:
		var v struct{ Error json.RawMessage }
		if json.Unmarshal([]byte(body), &v) != nil || len(v.Error) == 0 {
			return invalid
		}
		return refused
	case !stream:
		if !json.Valid([]byte(body)) {
			return invalid
		}
		return whole
	}
	end := done
	switch path {
	case "/v1/messages":
		end = "event: message_stop\n"
	case "/v1/responses":
		end = "event: response.incomplete\n"
	}
	events := strings.SplitAfter(body, "\n\n")
	last := events[len(events)-2]
	failure := `"error":{`
	if path == "/v1/responses" { // an engine's own has no such member
		failure = "event: error\n"
	}
	failures := strings.Count(body, failure)
	switch {
	case !strings.HasSuffix(body, "\n\n"), strings.Count(body, end) > 1, strings.Contains(body, " late"):
		return invalid
	case failures == 1 && strings.Contains(last, failure) && !strings.Contains(body, end):
		return errored
	case failures == 0 && strings.HasPrefix(last, strings.TrimSuffix(end, "\n")):
		return whole
	}
	return invalid
}
