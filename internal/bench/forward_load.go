package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// forwardRound is what one contender did in one round.
type forwardRound struct {
	rps, p50 float64 // requests per second, milliseconds
	cpu      float64 // microseconds per request
	allocs   float64 // per request
	worker   float64 // CPU of the worker behind the contender, microseconds per request
	client   float64 // likewise of the client
	done     int     // answers begun
	cut      int     // of them, streams that ended before their last event
}

// round loads a part for the given time and reads what it cost.
func (rig *forwardRig) round(ctx context.Context, load *forwardLoad, length time.Duration) (forwardRound, error) {
	var got forwardRound
	var others [2]time.Duration
	used, err := load.part.used(ctx, func() (err error) {
		before, err := rig.others()
		if err != nil {
			return err
		}
		if got, err = load.run(ctx, length); err != nil {
			return fmt.Errorf("%s, %d connections: %w", load.mode, load.c, err)
		}
		after, err := rig.others()
		others = [2]time.Duration{after[0] - before[0], after[1] - before[1]}
		return err
	})
	if err != nil {
		return got, err
	}
	if got.done == 0 {
		return got, fmt.Errorf("%s answered nothing within %v", load.part.name, length)
	}
	n := float64(got.done)
	got.cpu, got.allocs = float64(used.cpu.Microseconds())/n, used.allocs/n
	got.worker, got.client = float64(others[0].Microseconds())/n, float64(others[1].Microseconds())/n
	return got, nil
}

// others returns the CPU times of the worker and of the client, which is this process.
func (rig *forwardRig) others() (cpu [2]time.Duration, err error) {
	if cpu[0], err = ProcessCPUTime(rig.worker.pid); err != nil {
		return cpu, err
	}
	cpu[1], err = CPUTime()
	return cpu, err
}

// forwardLoad is a client of c connections, one as programs on Go's standard library
// are: what a proxy adds is told in proportion to what it is added to. A client that
// writes ready-made bytes and hardly looks at the answers costs a third of it, so that
// the same reference proxy is at 0.19 of a direct connection and not at 0.28, while
// those measurements of other routers that we compare with had it at 0.26. For the same
// reason it decodes each event of a stream, as SDKs do: one that looks for the ends of
// events only has the reference at 0.70 and Envoy at 0.71, which there are at 0.83 and
// 0.93.
type forwardLoad struct {
	part *forwardPart
	mode string
	c    int
	lean bool // it does not decode events
	most int  // requests in all; 0 for no bound

	conns *http.Transport // kept from run to run; made by the first
	begun atomic.Int64
	cut   atomic.Int64
}

// errCut is a stream that ended before its last event.
var errCut = errors.New("the stream was cut")

// run sends requests until the time is over or enough are sent.
func (l *forwardLoad) run(ctx context.Context, length time.Duration) (forwardRound, error) {
	ctx, cancel := context.WithTimeout(ctx, length+30*time.Second) // what hangs is an error, not a hang
	defer cancel()
	if l.conns == nil {
		l.conns = &http.Transport{MaxIdleConnsPerHost: l.c, DisableCompression: true}
	}
	l.begun.Store(0)
	l.cut.Store(0)
	client := &http.Client{Transport: l.conns}
	latencies := make([][]float64, l.c)
	failures := make([]error, l.c)
	var clients sync.WaitGroup
	start := time.Now()
	for i := range l.c {
		clients.Go(func() {
			latencies[i], failures[i] = l.send(ctx, client, start.Add(length))
		})
	}
	clients.Wait()
	took := time.Since(start)
	var all []float64
	for _, some := range latencies {
		all = append(all, some...)
	}
	got := forwardRound{done: len(all), cut: int(l.cut.Load()), rps: float64(len(all)) / took.Seconds()}
	if len(all) > 0 {
		got.p50 = Median(all)
	}
	return got, errors.Join(failures...)
}

// close ends the connections.
func (l *forwardLoad) close() {
	if l.conns != nil {
		l.conns.CloseIdleConnections()
	}
}

// send sends requests one after another.
func (l *forwardLoad) send(ctx context.Context, client *http.Client, until time.Time) (latencies []float64, err error) {
	body := forwardBody(l.mode == modeSSE)
	in := bufio.NewReaderSize(nil, 32<<10)
	for ctx.Err() == nil && time.Now().Before(until) {
		if l.most > 0 && l.begun.Add(1) > int64(l.most) {
			break
		}
		start := time.Now()
		err = l.once(ctx, client, body, in)
		latencies = append(latencies, float64(time.Since(start).Nanoseconds())/1e6)
		if errors.Is(err, errCut) {
			l.cut.Add(1)
			err = nil
		}
		if err != nil {
			return latencies, err
		}
	}
	return latencies, ctx.Err()
}

// once sends a request, reads the answer and checks that all of it came.
func (l *forwardLoad) once(ctx context.Context, client *http.Client, body string, in *bufio.Reader) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+l.part.addr+forwardPath, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(headerNamed, l.part.worker)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	in.Reset(resp.Body)
	if l.mode == modeSSE {
		return wholeStream(in, !l.lean)
	}
	n, err := io.Copy(io.Discard, in)
	if err == nil && n != int64(len(natsAnswer)) {
		err = fmt.Errorf("an answer of %d bytes, want %d", n, len(natsAnswer))
	}
	return err
}

// forwardEvent is what a client wants of a stream's event.
type forwardEvent struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []struct {
		Index        int     `json:"index"`
		FinishReason *string `json:"finish_reason"`
		Delta        struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
}

// wholeStream reads a stream to its end, line by line. Its error is errCut unless all
// events came, [DONE] last, and the body ended as it should; if they are decoded, also
// when one has no text.
func wholeStream(in *bufio.Reader, decode bool) error {
	events, done := 0, false
	for {
		line, err := in.ReadSlice('\n')
		if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
			events++
			done = string(line) == natsDone[:len(natsDone)-1]
			if decode && !done && !hasText(data) {
				return errCut
			}
		}
		switch {
		case errors.Is(err, io.EOF) && done && events == sseEvents+1:
			return nil
		case err != nil:
			return errCut
		}
	}
}

func hasText(data []byte) bool {
	var ev forwardEvent
	return json.Unmarshal(data, &ev) == nil && len(ev.Choices) > 0 && ev.Choices[0].Delta.Content != ""
}

// readHead reads a response head and checks that it is a 200.
func readHead(in *bufio.Reader) error {
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("response head: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first && !bytes.HasPrefix(line, []byte("HTTP/1.1 200")):
			return fmt.Errorf("the answer is %q", line)
		case len(line) == 0:
			return nil
		}
	}
}
