package extproc

import (
	"bufio"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"

	"pointsman/fleet"
)

// captured is one recorded conversation of a gateway with Infera's picker.
type captured struct {
	name    string
	asked   []*extprocv3.ProcessingRequest
	answers []*extprocv3.ProcessingResponse
}

func readCaptured(t *testing.T) []captured {
	t.Helper()
	f, err := os.Open("testdata/infera_exchange.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []captured
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if fields[0] == "case" {
			all = append(all, captured{name: strings.TrimPrefix(lines.Text(), "case ")})
			continue
		}
		raw, err := hex.DecodeString(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		c := &all[len(all)-1]
		if fields[0] == ">>>" {
			c.asked = append(c.asked, new(extprocv3.ProcessingRequest))
			err = proto.Unmarshal(raw, c.asked[len(c.asked)-1])
		} else {
			c.answers = append(c.answers, new(extprocv3.ProcessingResponse))
			err = proto.Unmarshal(raw, c.answers[len(c.answers)-1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// seen is what a data plane makes of a picker's answers.
type seen struct {
	set        []*corev3.HeaderValueOption
	setWith    string // the answer that set the headers
	request    string
	response   string
	requestEnd bool
	immediate  int
}

func see(answers []*extprocv3.ProcessingResponse) seen {
	var s seen
	note := func(where string, m *extprocv3.HeaderMutation) {
		if len(m.GetSetHeaders()) > 0 {
			s.set, s.setWith = m.GetSetHeaders(), where
		}
	}
	for _, a := range answers {
		note("headers", a.GetRequestHeaders().GetResponse().GetHeaderMutation())
		note("body", a.GetRequestBody().GetResponse().GetHeaderMutation())
		piece := a.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		s.request += string(piece.GetBody())
		s.requestEnd = s.requestEnd || piece.GetEndOfStream()
		s.response += string(a.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody())
		s.immediate += int(a.GetImmediateResponse().GetStatus().GetCode())
	}
	return s
}

func mixedFleet() []*fleet.Worker {
	return []*fleet.Worker{mixed("10.0.0.3:30000", "mock-model"), mixed("10.0.0.4:30000", "mock-model")}
}

func pairFleet() []*fleet.Worker {
	prefill, decode := mixed("10.0.0.1:30000", "mock-model"), mixed("10.0.0.2:30000", "mock-model")
	prefill.Role, decode.Role = fleet.Prefill, fleet.Decode
	prefill.Protocol, decode.Protocol = "sglang-bootstrap", "sglang-bootstrap"
	return []*fleet.Worker{prefill, decode}
}

// play gives the messages to a fresh server of the given workers.
func play(t *testing.T, msgs []*extprocv3.ProcessingRequest, workers ...*fleet.Worker) []*extprocv3.ProcessingResponse {
	t.Helper()
	w := buildWorld(t, testConfig(), workers...)
	c := w.server.acquire()
	defer w.server.release(t.Context(), c)
	var answers []*extprocv3.ProcessingResponse
	for _, m := range msgs {
		c.msg = *view(t, m)
		goesOn := c.x.on(t.Context(), &c.msg)
		c.msg.free()
		for i := range c.x.out {
			answers = append(answers, decode(t, c.x.out[i]))
		}
		c.x.out = c.x.out[:0]
		if !goesOn {
			break
		}
	}
	return answers
}

// A gateway that works with Infera's picker sees from ours the same headers set
// in the same way and the same bodies, with the differences that make it work on
// stock Envoy: the headers come with the headers answer, and what can't be
// served is refused.
func TestRecordedConversationsWithInferasPicker(t *testing.T) {
	played := 0
	for _, c := range readCaptured(t) {
		workers := mixedFleet()
		if strings.Contains(c.name, "PD fleet") {
			workers = pairFleet()
		}
		played++
		t.Run(c.name, func(t *testing.T) {
			theirs, ours := see(c.answers), see(play(t, c.asked, workers...))
			switch {
			case strings.HasPrefix(c.name, "unknown"):
				if ours.immediate != 404 {
					t.Errorf("an unknown model gives %+v", ours)
				}
				return
			case strings.HasPrefix(c.name, "badjson"):
				if ours.immediate != 400 {
					t.Errorf("a body that is no JSON gives %+v", ours)
				}
				return
			}
			if ours.setWith != "headers" {
				t.Errorf("routing headers came with the %s answer", ours.setWith)
			}
			for _, want := range theirs.set {
				if want.GetHeader().GetKey() == HeaderPrefill && strings.HasPrefix(c.name, "get") {
					continue // a request without a prompt has no prefill leg
				}
				i := slices.IndexFunc(ours.set, func(o *corev3.HeaderValueOption) bool {
					return o.GetHeader().GetKey() == want.GetHeader().GetKey()
				})
				if i < 0 {
					t.Errorf("header %s is not set", want.GetHeader().GetKey())
					continue
				}
				got := ours.set[i]
				if got.GetAppendAction() != want.GetAppendAction() || got.GetHeader().GetValue() != "" || len(got.GetHeader().GetRawValue()) == 0 {
					t.Errorf("header set as %v, Infera's as %v", got, want)
				}
				// Which of two equal workers is picked may differ.
				if g, w := string(got.GetHeader().GetRawValue()), string(want.GetHeader().GetRawValue()); len(g) != len(w) || g[8:] != w[8:] {
					t.Errorf("header %s is %s, Infera's %s", got.GetHeader().GetKey(), g, w)
				}
			}
			if ours.request != theirs.request || ours.response != theirs.response || ours.requestEnd != theirs.requestEnd {
				t.Errorf("bodies differ: %+v, Infera's %+v", ours, theirs)
			}
		})
	}
	if played != 6 {
		t.Errorf("%d conversations were played, want 6", played)
	}
}

// The order of answers is part of the protocol: headers, body, trailers.
func TestAnswersComeInOrderWhateverTheTiming(t *testing.T) {
	body := chat("mock-model", strings.Repeat("word ", 40000))
	msgs := []*extprocv3.ProcessingRequest{post(chatPath)}
	msgs = append(msgs, cut(body, 50000, 70000)...)
	last := msgs[len(msgs)-1].GetRequestBody()
	last.EndOfStream = false
	msgs = append(msgs, requestTrailers("x", "1"), responseHeaders(false, ":status", "200"), responseBody("a", false), responseBody("b", false), responseTrailers())
	var order []string
	for _, a := range play(t, msgs, mixedFleet()...) {
		kind := string(a.ProtoReflect().WhichOneof(a.ProtoReflect().Descriptor().Oneofs().ByName("response")).Name())
		if len(order) == 0 || order[len(order)-1] != kind {
			order = append(order, kind)
		}
	}
	want := []string{"request_headers", "request_body", "request_trailers", "response_headers", "response_body", "response_trailers"}
	if !slices.Equal(order, want) {
		t.Errorf("answers came as %v, want %v", order, want)
	}
}
