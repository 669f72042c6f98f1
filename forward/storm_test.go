package forward_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/forward"
)

// Random faults, clients that leave, many requests at once: each request that
// was read to its end has one terminal, and everything is given back.
func TestAStormOfFaultsLeavesNothingBehind(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	faults := []script{
		good, good, good, good,
		rawClose(""), rawReset("", nil), raw(jsonReply(500, `{}`)), raw(jsonReply(429, `{}`)), raw(jsonReply(400, `{"error":{"message":"m"}}`)),
		rawClose(sseOpen(role)), rawClose(sseOpen(tok0)), rawReset(sseOpen(tok0), nil), raw(sse(tok0)), raw(sse(tok0, done, done)),
		raw(sse(tok0, `data: {"error":{"message":"x"}}`+"\n\n", done)),
	}
	random := func(c net.Conn, r receipt) bool {
		n := rand.New(rand.NewPCG(seed, uint64(len(r.head.Header.Get("X-Request-Id")))+uint64(time.Now().UnixNano())))
		return faults[n.IntN(len(faults))](c, r)
	}
	w := newWorld(t, []script{random, random, random})
	w.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 20
	const clients, each = 12, 12
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for j := range each {
				if (i+j)%5 == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(j)*time.Millisecond)
					resp, err := w.client.Do(w.request(ctx, call{body: streamBody}))
					if err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
					cancel()
					continue
				}
				got := w.do(call{body: streamBody})
				if got.status != 200 {
					if !strings.Contains(got.body, `"error"`) && got.body != "{}" {
						t.Errorf("status %d body %q", got.status, got.body)
					}
					continue
				}
				ends := strings.Count(got.body, done) + strings.Count(got.body, `data: {"error"`)
				if ends != 1 || got.err != nil {
					t.Errorf("%d terminals, error %v in %q", ends, got.err, got.body)
				}
			}
		})
	}
	wg.Wait()
	sent := 0
	for i := range clients {
		for j := range each {
			if (i+j)%5 != 0 {
				sent++
			}
		}
	}
	// Of those that left early not all were seen here: some left before they were
	// sent. The server ends when it has dealt with the others.
	w.client.CloseIdleConnections()
	fatal(t, w.stop())
	counted := w.count("infera_request_duration_seconds")
	w.settled(counted)
	if counted < sent || counted > clients*each {
		t.Errorf("%d requests counted of %d read to the end and %d in all", counted, sent, clients*each)
	}
}

func TestAClientThatDoesNotReadIsGivenUp(t *testing.T) {
	flood := func(c net.Conn, _ receipt) bool {
		_, _ = io.WriteString(c, sseHead)
		event := chunk(strings.Repeat(tok0, 100))
		for {
			if _, err := io.WriteString(c, event); err != nil {
				return false
			}
		}
	}
	w := newWorld(t, []script{flood}, change(func(c *forward.Config) { c.WriteTimeout = 300 * time.Millisecond }))
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	defer c.Close()
	_, err = fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamBody), streamBody)
	fatal(t, err)
	w.settled(1)
	if w.count("infera_request_duration_seconds", "outcome=client_gone") != 1 {
		t.Error("not counted as a client's disconnect")
	}
	if n := w.count("pointsman_forward_attempts_total", "outcome=aborted"); n != 1 {
		t.Errorf("%d canceled attempts", n)
	}
}

func TestABodyThatBreaksOffReachesNoWorker(t *testing.T) {
	w := newWorld(t, []script{good})
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	fatal(t, err)
	_, err = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"model\"")
	fatal(t, err)
	c.Close()
	w.settled(1)
	if n := len(w.engines[0].got()); n != 0 {
		t.Errorf("%d deliveries", n)
	}
}

func TestExpectContinueIsHandledHere(t *testing.T) {
	w := newWorld(t, []script{good})
	got := w.do(call{body: chatBody, header: map[string]string{"Expect": "100-continue"}})
	if got.status != 200 || w.engines[0].got()[0].head.Header.Get("Expect") != "" {
		t.Errorf("status %d, headers %v", got.status, w.engines[0].got()[0].head.Header)
	}
}

// slow is a request body whose time has run out.
type slow struct{ io.Reader }

func (s slow) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = os.ErrDeadlineExceeded
	}
	return n, err
}

func TestABodyThatComesTooSlowlyIsATimeout(t *testing.T) {
	w := newWorld(t, []script{good})
	rec := &recorder{header: http.Header{}}
	req := w.request(t.Context(), call{})
	req.Body, req.ContentLength = io.NopCloser(slow{strings.NewReader(`{"model"`)}), 100
	w.server.Handler().ServeHTTP(rec, req)
	if rec.status != 408 || !bytes.Contains(rec.body.Bytes(), []byte("request_timeout")) {
		t.Errorf("status %d body %s", rec.status, rec.body.String())
	}
}

type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(p []byte) (int, error) { return r.body.Write(p) }
