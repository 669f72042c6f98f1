package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman/internal/stack"
)

// resident returns a number of a process's memory in bytes: VmRSS, or VmHWM for the
// highest it has been.
func resident(t *testing.T, p *stack.Process, name string) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		var kib int
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s in %s", name, raw)
	return 0
}

// endless is the beginning of a chat whose prompt goes on, and how much of it was
// read.
type endless struct {
	head io.Reader
	read atomic.Int64
}

func (e *endless) Read(p []byte) (int, error) {
	n, err := e.head.Read(p)
	if err != nil {
		n = copy(p, bytes.Repeat([]byte("word "), len(p)/5+1))
	}
	e.read.Add(int64(n))
	return n, nil
}

// TestABodyAboveTheLimitCostsBoundedMemory is security S7: a body of 33 MiB, of which
// nobody says how long it is, is refused at 32 MiB by each program, whose memory
// grows by less than 64 MiB.
func TestABodyAboveTheLimitCostsBoundedMemory(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(1, fast()...)})
	const limit = 32 << 20
	for _, tc := range []struct {
		name, url string
		process   *stack.Process
		slack     int64 // what may be under way between the client and the program
	}{
		{"the forwarder", s.Workers[0].ForwarderURL, s.Workers[0].Forwarder.Process(), 8 << 20},
		{"the EPP, through Envoy", s.URL, s.EPPs[0].Process(), 16 << 20},
	} {
		before := resident(t, tc.process, "VmRSS")
		body := &endless{head: strings.NewReader(`{"model":"` + stack.DefaultModel + `","messages":[{"role":"user","content":"`)}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, tc.url+"/v1/chat/completions", io.LimitReader(body, 33<<20))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Id", id(t, "0"))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: status %d: %.200s", tc.name, resp.StatusCode, text)
		}
		if taken := body.read.Load(); taken < limit || taken > limit+tc.slack {
			t.Errorf("%s: %d bytes were taken, want %d and little more", tc.name, taken, limit)
		}
		grown := resident(t, tc.process, "VmHWM") - before
		t.Logf("%s: %d MiB more than before, at most", tc.name, grown>>20)
		if grown >= 64<<20 {
			t.Errorf("%s: its memory has grown by %d MiB", tc.name, grown>>20)
		}
	}
	if list := receipts(t, s, id(t, "0")); len(list) != 0 {
		t.Errorf("an engine was asked: %+v", list)
	}
}

// TestSlowClientsAreGivenUp is security S8: a thousand connections that never finish
// their headers are gone within eleven seconds, and a body of one byte a second is
// refused, while others are served.
func TestSlowClientsAreGivenUp(t *testing.T) {
	t.Parallel()
	s := startFleet(t, stack.Config{Workers: stack.MixedWorkers(1, fast()...)})
	at := s.Workers[0].Destination
	var wait sync.WaitGroup
	wait.Go(func() {
		status, took := slowBody(t, at)
		if status != http.StatusRequestTimeout || took > 45*time.Second {
			t.Errorf("a body of a byte a second: status %d after %v", status, took)
		}
	})
	const many = 1000
	began := time.Now()
	open := make([]net.Conn, 0, many)
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for range many {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		if _, err = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
			t.Fatal(err)
		}
	}
	dialed := time.Since(began)
	parse(t, chat(t, s, id(t, "meanwhile"), "hello", nil))
	for i, c := range open {
		if err := c.SetReadDeadline(began.Add(dialed + 11*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("connection %d of %d is still there after %v: %v", i, many, time.Since(began), err)
		}
	}
	t.Logf("%d connections were gone %v after the first was opened, which took %v", many, time.Since(began), dialed)
	wait.Wait()
	if list := receipts(t, s, id(t, "slow")); len(list) != 0 {
		t.Errorf("an engine was asked: %+v", list)
	}
}

// slowBody sends a byte a second and returns the answer's status, and when it came.
func slowBody(t *testing.T, at string) (status int, took time.Duration) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Error(err)
		return 0, 0
	}
	defer c.Close()
	began := time.Now()
	body := string(chatBody(t, words(1, 50), nil))
	if _, err = fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n", id(t, "slow"), len(body)); err != nil {
		t.Error(err)
		return 0, 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := range len(body) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, failed := io.WriteString(c, body[i:i+1]); failed != nil {
				return
			}
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Errorf("after %v: %v", time.Since(began), err)
		return 0, time.Since(began)
	}
	defer resp.Body.Close()
	return resp.StatusCode, time.Since(began)
}
