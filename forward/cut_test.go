package forward_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/forward"
)

// tape is a transport whose body gives text in steps of so many bytes, and then
// ends in end.
type tape struct {
	text    string
	step    int
	end     error
	closing bool // the end of the body is the connection's end
	kind    string
}

func (tp *tape) Do(context.Context, *fleet.Worker, *forward.Request) (*forward.Response, error) {
	return &forward.Response{
		Status: 200, Length: -1, CloseDelimited: tp.closing,
		Header: http.Header{"Content-Type": {tp.kind}},
		Body:   io.NopCloser(&tapeReader{tp, tp.text}),
	}, nil
}

type tapeReader struct {
	tape *tape
	rest string
}

func (r *tapeReader) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), r.tape.step)], r.rest)
	r.rest = r.rest[n:]
	if r.rest == "" {
		return n, r.tape.end
	}
	return n, nil
}

var errCut = &forward.Error{Stage: forward.StageBody, Err: forward.ErrTruncated}

// play relays a tape to a client and returns what it got; aborted says that the
// connection was broken off.
func play(t *testing.T, path, body string, tp *tape) (rec *httptest.ResponseRecorder, aborted bool) {
	t.Helper()
	return playOn(t, bubble(t, forward.DefaultConfig(), tp), path, body)
}

func playOn(t *testing.T, srv *forward.Server, path, body string) (rec *httptest.ResponseRecorder, aborted bool) {
	t.Helper()
	rec = httptest.NewRecorder()
	defer func() {
		if r := recover(); r != nil {
			if err, ok := r.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(r)
			}
			aborted = true
		}
	}()
	srv.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
	return rec, false
}

// capture returns the stream that an engine behind Infera sent, as captured on
// the wire (testdata/sse_infera_http.txt: eight tokens and [DONE]).
func capture(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("testdata/sse_infera_http.txt")
	fatal(t, err)
	return string(raw)
}

func TestACapturedStreamPassesUnchangedInWhateverPieces(t *testing.T) {
	text := capture(t)
	for _, form := range []string{text, strings.ReplaceAll(text, "\n", "\r\n"), strings.ReplaceAll(text, "\n", "\r")} {
		for _, step := range []int{1, 2, 3, 7, 64, 1000, 1 << 20} {
			rec, _ := play(t, "/v1/chat/completions", streamBody, &tape{text: form, step: step, end: io.EOF, kind: "text/event-stream"})
			want := form[:strings.Index(form, "[DONE]")+len("[DONE]")]
			got := strings.TrimRight(rec.Body.String(), "\r\n")
			if rec.Code != 200 || got != want {
				t.Errorf("steps of %d: %d bytes of %d: %.80q", step, len(got), len(want), got)
			}
		}
	}
}

// Wherever a stream is cut, and however the cut shows, the client gets whole
// events of it and one error event, or a status if it has got nothing.
func TestAStreamCutAnywhereEndsInWholeEventsAndOneError(t *testing.T) {
	text := capture(t)
	firstEvent := strings.Index(text, "\n\n") + 2
	doneAt := strings.Index(text, "data: [DONE]") + len("data: [DONE]")
	for _, end := range []error{io.EOF, errCut} {
		for cut := range len(text) {
			rec, _ := play(t, "/v1/chat/completions", streamBody, &tape{text: text[:cut], step: 50, end: end, closing: errors.Is(end, io.EOF), kind: "text/event-stream"})
			body := rec.Body.String()
			switch {
			case cut < firstEvent:
				if rec.Code != http.StatusBadGateway || !strings.Contains(body, "upstream_stream_truncated") {
					t.Fatalf("cut at %d: status %d body %q", cut, rec.Code, body)
				}
			case cut >= doneAt && errors.Is(end, io.EOF), cut >= doneAt+2:
				if rec.Code != 200 || strings.Contains(body, "error") || strings.Count(body, "[DONE]") != 1 {
					t.Fatalf("cut at %d, behind [DONE]: status %d body %q", cut, rec.Code, body)
				}
			default:
				whole := text[:strings.LastIndex(text[:cut], "\n\n")+2]
				rest, ok := strings.CutPrefix(body, whole)
				if rec.Code != 200 || !ok {
					t.Fatalf("cut at %d: status %d body %q", cut, rec.Code, body)
				}
				checkTerminal(t, rest, "upstream_stream_truncated")
			}
			if t.Failed() {
				t.Fatalf("cut at %d", cut)
			}
		}
	}
}

func TestAnObjectCutAnywhereIsNeverACleanAnswer(t *testing.T) {
	small := `{"choices":[{"message":{"content":"` + strings.Repeat("ok ", 50) + `"}}],"usage":{"total_tokens":9}}`
	large := `{"choices":[{"message":{"content":"` + strings.Repeat("ok ", 40<<10) + `"}}]}`
	for name, text := range map[string]string{"small": small, "large": large} {
		step := max(1, len(text)/97)
		for cut := 0; cut < len(text); cut += step {
			for _, end := range []error{io.EOF, errCut} {
				rec, aborted := play(t, "/v1/chat/completions", chatBody, &tape{text: text[:cut], step: 4096, end: end, closing: errors.Is(end, io.EOF), kind: "application/json"})
				if rec.Code == 200 && !aborted {
					t.Fatalf("%s object cut at %d of %d with %v: %d bytes and a clean end", name, cut, len(text), end, rec.Body.Len())
				}
				if rec.Code != 200 && !strings.Contains(rec.Body.String(), "upstream_stream_truncated") {
					t.Fatalf("%s object cut at %d: status %d body %.200q", name, cut, rec.Code, rec.Body.String())
				}
			}
		}
		rec, aborted := play(t, "/v1/chat/completions", chatBody, &tape{text: text, step: 4096, end: io.EOF, closing: true, kind: "application/json"})
		if rec.Code != 200 || aborted || rec.Body.String() != text {
			t.Errorf("%s object: status %d, aborted %v, %d bytes of %d", name, rec.Code, aborted, rec.Body.Len(), len(text))
		}
	}
}

// explosive is a transport with a bug.
type explosive struct{}

func (explosive) Do(context.Context, *fleet.Worker, *forward.Request) (*forward.Response, error) {
	panic("a bug")
}

func TestAPanicGivesBackWhatTheRequestHeld(t *testing.T) {
	w := newWorld(t, nil, func(_ *forward.Config, d *forward.Deps) {
		d.Transports = map[string]forward.Transport{"http": explosive{}}
	})
	w.feed.Replace([]*fleet.Worker{{ID: "w1", Model: model, DPRank: -1, BlockSize: 16}})
	for range 3 {
		resp, err := w.client.Do(w.request(t.Context(), call{body: chatBody}))
		if err == nil {
			resp.Body.Close()
			t.Errorf("status %d for a panic", resp.StatusCode)
		}
	}
	w.settled(0)
	if n := w.count("pointsman_forward_attempts_total"); n != 0 {
		t.Errorf("%d attempts counted", n)
	}
}

// FuzzRelay: whatever an engine streams, the client gets a prefix of it, then
// nothing, one error event, or the end of a [DONE] whose blank line was missing;
// and what it gets does not end in a way that looks complete unless it was.
func FuzzRelay(f *testing.F) {
	f.Add(goodBody, 7, true)
	f.Add(tok0+done+tok1, 1, false)
	f.Add(role+": x\r\n\r\n"+tok0+"\r\r"+`data: {"error":{"code":400}}`+"\n\n"+done, 3, true)
	f.Add("data: [DONE]", 100, true)
	var tp tape
	srv := bubble(f, forward.DefaultConfig(), &tp)
	f.Fuzz(func(t *testing.T, text string, step int, clean bool) {
		end := io.EOF
		if !clean {
			end = errCut
		}
		step = 1 + (step&0x7fffffff)%200
		tp = tape{text: text, step: step, end: end, kind: "text/event-stream"}
		rec, aborted := playOn(t, srv, "/v1/chat/completions", streamBody)
		if aborted {
			t.Fatal("a stream was aborted")
		}
		body := rec.Body.String()
		if rec.Code != 200 {
			return
		}
		if strings.HasPrefix(text, body) {
			return // complete, or ended in the engine's own error event
		}
		relayed, told, ours := strings.Cut(body, `data: {"error":{"message":"`)
		if ours && strings.HasPrefix(text, relayed) && strings.Count(told, "\n\n") == 1 && strings.HasSuffix(told, "\n\n") {
			return
		}
		if whole, ok := strings.CutSuffix(body, "\n\n"); ok && whole == text && strings.Contains(text, "[DONE]") {
			return
		}
		t.Fatalf("relayed %q of %q", body, text)
	})
}
