package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"pointsman/internal/simengine"
	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

// legsOf waits until every leg of a request has ended, and returns them by role.
func legsOf(t *testing.T, s *stack.Stack, requestID string) (prefill, decode []simengine.Receipt) {
	t.Helper()
	eventually(t, "the end of the legs of "+requestID, func(context.Context) error {
		prefill, decode = nil, nil
		for _, rc := range receipts(t, s, requestID) { //nolint:contextcheck // a look is bounded by the test
			if rc.EndedAt == nil {
				return fmt.Errorf("%w: a %s leg is %s", errNotYet, rc.Leg, rc.Outcome)
			}
			if rc.Leg == "prefill" {
				prefill = append(prefill, rc)
			} else {
				decode = append(decode, rc)
			}
		}
		if len(decode) == 0 {
			return errNotYet
		}
		return nil
	})
	return prefill, decode
}

// thePair checks that a request was served by one pair: two legs in one room, no
// other that came to its end. It returns the legs.
func thePair(t *testing.T, s *stack.Stack, requestID string) (prefill, decode simengine.Receipt) {
	t.Helper()
	ps, ds := legsOf(t, s, requestID)
	whole := func(rc simengine.Receipt) bool { return rc.Outcome == "complete" }
	i, j := slices.IndexFunc(ps, whole), slices.IndexFunc(ds, whole)
	if i < 0 || j < 0 {
		t.Fatalf("%s: no pair: prefill %+v, decode %+v", requestID, ps, ds)
	}
	p, d := ps[i], ds[j]
	if p.Room == "" || p.Room != d.Room || p.Partner != d.WorkerID || d.Partner != p.WorkerID {
		t.Errorf("%s: prefill in room %q with %q, decode in room %q with %q", requestID, p.Room, p.Partner, d.Room, d.Partner)
	}
	rooms := map[string]int{}
	for _, rc := range slices.Concat(ps, ds) {
		rooms[rc.Leg+rc.Room]++
		if rc.Room != p.Room && rc.Outcome == "complete" {
			t.Errorf("%s: a second whole %s leg, in room %s at %s", requestID, rc.Leg, rc.Room, rc.WorkerID)
		}
	}
	for room, n := range rooms {
		if n > 1 {
			t.Errorf("%s: %d legs of %s", requestID, n, room)
		}
	}
	return p, d
}

// TestAPairOfWorkersServesTheOfficialClient has fleets of prefill and decode
// workers only, behind Envoy, their requests over HTTP and over NATS.
func TestAPairOfWorkersServesTheOfficialClient(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]*stack.BrokerConfig{"http": nil, "nats": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startFleet(t, stack.Config{Workers: stack.PairedWorkers(2, 2, fast()...), Policy: "kv-aware", OverlapWeight: 20, Broker: broker})
			var sent [][]byte
			client := openAI(s, &sent)
			params := openai.ChatCompletionNewParams{
				Model: stack.DefaultModel, MaxTokens: openai.Int(20),
				Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Say something. " + words(2, 400))},
			}
			got, err := client.Chat.Completions.New(t.Context(), params, option.WithHeader("X-Request-Id", id(t, "whole")))
			if err != nil {
				t.Fatal(err)
			}
			stream := client.Chat.Completions.NewStreaming(t.Context(), params, option.WithHeader("X-Request-Id", id(t, "streamed")))
			var whole openai.ChatCompletionAccumulator
			for stream.Next() {
				whole.AddChunk(stream.Current())
			}
			if err := stream.Err(); err != nil || whole.Choices[0].Message.Content != got.Choices[0].Message.Content || got.Usage.CompletionTokens != 20 {
				t.Errorf("%v: streamed %q, whole %s", err, whole.Choices[0].Message.Content, got.RawJSON())
			}
			p1, d1 := thePair(t, s, id(t, "whole"))
			p2, d2 := thePair(t, s, id(t, "streamed"))
			if p1.Room == p2.Room {
				t.Errorf("both requests met in room %s", p1.Room)
			}
			if d1.TokensSent != 20 || d2.TokensSent != 20 || p1.TokensSent > 1 || p2.TokensSent > 1 {
				t.Errorf("tokens: decode %d and %d, prefill %d and %d", d1.TokensSent, d2.TokensSent, p1.TokensSent, p2.TokensSent)
			}
			if p1.WorkerID != p2.WorkerID || p2.CachedTokens < 350 {
				t.Errorf("the same prompt again: %d tokens cached on %s, the first was on %s", p2.CachedTokens, p2.WorkerID, p1.WorkerID)
			}
		})
	}
}

// setFault makes an engine misbehave; mode "ok" ends it.
func setFault(t *testing.T, w *stack.Worker, mode string) {
	t.Helper()
	raw, err := json.Marshal(simengine.Fault{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	if a := send(t, http.DefaultClient, http.MethodPost, w.Control+"/control/fault", bytes.NewReader(raw), nil); a.status >= 300 {
		t.Fatalf("fault %s: %d %s", mode, a.status, a.body)
	}
}

// TestAPrefillLegThatFailsCostsNothingAndADecodeLegIsNotRepeated kills prefill and
// decode workers while prompts are computed (defect P10): the other leg is ended;
// for a lost prefill leg another pair meets in another room, and the client of a
// lost decode leg, which may have computed something, is told.
func TestAPrefillLegThatFailsCostsNothingAndADecodeLegIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{
		Workers: stack.PairedWorkers(3, 2, "--prefill-tokens-per-s", "1000", "--decode-ms-per-step", "5", "--max-num-seqs", "8"), Policy: "round-robin",
	})
	for _, w := range s.Workers[:3] { // what the prompt is to blame for is not tried again
		setFault(t, w, "status:400")
	}
	begun := time.Now()
	a := chat(t, s, id(t, "bad"), words(3, 100), nil)
	if a.status != http.StatusBadRequest || time.Since(begun) > soon/2 {
		t.Errorf("a prefill worker's 400 became %d after %v: %.200s", a.status, time.Since(begun), a.body)
	}
	eventually(t, "the decode leg to end, unless the refusal was faster than its dispatch", func(context.Context) error {
		list := receipts(t, s, id(t, "bad")) //nolint:contextcheck // a look is bounded by the test
		for _, rc := range list {
			switch {
			case rc.EndedAt == nil:
				return fmt.Errorf("%w: %+v", errNotYet, list)
			case len(list) > 2 || rc.Leg == "decode" && rc.Outcome != "aborted":
				t.Fatalf("after a prefill worker's 400: %+v", list)
			}
		}
		return nil
	})
	for _, w := range s.Workers[:3] {
		setFault(t, w, "ok")
	}
	for i, tt := range []struct {
		name, kill string
		stream     bool
	}{{"prefill, streamed", "prefill", true}, {"prefill, whole", "prefill", false}, {"decode, streamed", "decode", true}} {
		requestID := id(t, fmt.Sprint(i))
		ended := make(chan answer, 1)
		go func() {
			body := chatBody(t, words(20+i, 1500), map[string]any{"stream": tt.stream})
			ended <- send(t, http.DefaultClient, http.MethodPost, s.URL+"/v1/chat/completions", bytes.NewReader(body), map[string]string{"X-Request-Id": requestID})
		}()
		var at, room string
		eventually(t, "the prompt to be computed", func(context.Context) error {
			list := receipts(t, s, requestID) //nolint:contextcheck // a look is bounded by the test
			if len(list) != 2 || list[0].N == 0 || list[1].N == 0 {
				return fmt.Errorf("%w: %+v", errNotYet, list)
			}
			for _, rc := range list {
				if rc.Leg == tt.kill {
					at, room = rc.WorkerID, rc.Room
				}
			}
			return nil
		})
		killed := workerOf(t, s, at)
		killed.Engine.Kill()
		a := <-ended
		if tt.kill == "decode" {
			told(t, s, &a, requestID)
			continue // it is the last
		}
		whole := a.status == http.StatusOK && (!tt.stream || strings.HasSuffix(string(a.body), "data: [DONE]\n\n") && !strings.Contains(string(a.body), `"error"`))
		if !whole {
			t.Errorf("%s: %d: %.300s", tt.name, a.status, a.body)
			continue
		}
		p, d := thePair(t, s, requestID)
		if p.Room == room || p.WorkerID == at || d.WorkerID == at || a.header.Get(traffic.WorkerHeader) != d.WorkerID {
			t.Errorf("%s: %s killed in room %s; then %s and %s in room %s, the answer names %s", tt.name, at, room,
				p.WorkerID, d.WorkerID, p.Room, a.header.Get(traffic.WorkerHeader))
		}
		for _, rc := range receipts(t, s, requestID) {
			if rc.Room == room && rc.Outcome != "aborted" && rc.Outcome != "rejected" {
				t.Errorf("%s: the other leg went on: %+v", tt.name, rc)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
		if err := killed.Engine.Start(ctx); err != nil { // one failure at a time
			t.Fatal(err)
		}
		cancel()
	}
}

// told checks that the client of a lost decode leg has an error, that the other
// leg was ended and that nobody else was asked.
func told(t *testing.T, s *stack.Stack, a *answer, requestID string) {
	t.Helper()
	if a.status != http.StatusBadGateway || !strings.Contains(string(a.body), `"code":"upstream_reset"`) || a.header.Get("X-Should-Retry") != "false" {
		t.Errorf("a lost decode leg: %d, x-should-retry %q: %.300s", a.status, a.header.Get("X-Should-Retry"), a.body)
	}
	eventually(t, "the prefill leg to end", func(context.Context) error {
		list := receipts(t, s, requestID) //nolint:contextcheck // a look is bounded by the test
		if len(list) != 1 {               // the killed engine took its receipt along
			t.Fatalf("asked again: %+v", list)
		}
		if list[0].Leg != "prefill" || list[0].Outcome != "aborted" && list[0].Outcome != "rejected" {
			return fmt.Errorf("%w: %+v", errNotYet, list)
		}
		return nil
	})
}
