package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"pointsman/internal/history"
	"pointsman/internal/simengine"
)

// Load of a run. The machine that runs it runs the whole fleet, too.
const (
	streamShare = 0.7
	cancelShare = 0.06
	leastTokens = 4
	moreTokens  = 28
	patience    = 40 * time.Second // then a client counts its request as unanswered
)

// load sends requests until it is stopped.
type load struct {
	url    string
	models []string
	prefix string // of request IDs
	client *http.Client
	rng    *rand.Rand

	mu      sync.Mutex
	log     []history.Request
	running map[string]func() // how to leave, by request ID
	wg      sync.WaitGroup
}

func newLoad(url, prefix string, models []string, seed uint64) *load {
	return &load{
		url: url, models: models, prefix: prefix, running: map[string]func(){},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		rng:    rand.New(rand.NewPCG(seed, 0x6c6f6164)), //nolint:gosec // repeatable chance is what is wanted
	}
}

// run sends rate requests per second until ctx is done; those that run go on.
func (l *load) run(ctx context.Context, rate float64) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ask := l.draw(n)
		l.wg.Go(func() { l.send(context.WithoutCancel(ctx), ask) })
	}
}

// ask is one request to send.
type ask struct {
	id, model string
	stream    bool
	tokens    int
	prompt    string
	leave     time.Duration // after which the client leaves; 0 for never
}

func (l *load) draw(n int) ask {
	a := ask{
		id: fmt.Sprintf("%s-%d", l.prefix, n), model: l.models[n%len(l.models)],
		stream: l.rng.Float64() < streamShare, tokens: leastTokens + l.rng.IntN(moreTokens),
	}
	words := make([]string, 20+l.rng.IntN(120))
	for i := range words {
		words[i] = fmt.Sprintf("w%d", l.rng.IntN(1000))
	}
	a.prompt = strings.Join(words, " ")
	if l.rng.Float64() < cancelShare {
		a.leave = time.Duration(1+l.rng.IntN(400)) * time.Millisecond
	}
	return a
}

// leaveAll makes every client that waits leave.
func (l *load) leaveAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, leave := range l.running {
		leave()
	}
}

// done waits for the last answer and returns what all clients saw.
func (l *load) done() []history.Request {
	l.wg.Wait()
	l.client.CloseIdleConnections()
	return l.log
}

var errLeft = errors.New("the client left")

// send sends one request and notes what comes of it.
func (l *load) send(ctx context.Context, a ask) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := history.Request{ID: a.id, Model: a.model, Stream: a.stream, Want: a.tokens, Sent: time.Now()}
	var left sync.Once
	var leftAt time.Time
	leave := func() { left.Do(func() { leftAt = time.Now(); cancel(errLeft) }) }
	l.mu.Lock()
	l.running[a.id] = leave
	l.mu.Unlock()
	late := time.AfterFunc(patience, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	if a.leave > 0 {
		timer := time.AfterFunc(a.leave, leave)
		defer timer.Stop()
	}
	err := l.exchange(ctx, a, &r)
	r.End = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, a.id)
	left.Do(func() {}) // from here on it cannot leave any more
	if err != nil {
		r.Broken = true
		if errors.Is(context.Cause(ctx), errLeft) {
			r.Canceled = leftAt
		} else if r.Code == "" {
			r.Code = err.Error()
		}
	}
	l.log = append(l.log, r)
}

// exchange does the HTTP part.
func (l *load) exchange(ctx context.Context, a ask, r *history.Request) error {
	body, err := json.Marshal(map[string]any{
		"model": a.model, "max_tokens": a.tokens, "ignore_eos": true, "stream": a.stream, simengine.StampField: true,
		"messages": []map[string]string{{"role": "user", "content": a.prompt}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", a.id)
	resp, err := l.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	r.FirstByte = time.Now()
	r.Status, r.Forwarded = resp.StatusCode, resp.Header.Get("X-Infera-Request-Id") != ""
	r.Tries = history.ParseTries(resp.Header.Get("X-Infera-Attempts"))
	if a.stream && resp.StatusCode == http.StatusOK {
		return readStream(resp.Body, r)
	}
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return readWhole(raw, r)
}

// answer is what is read of an answer, or of an event of it.
type answer struct {
	Choices []struct {
		Message struct{ Content string } `json:"message"`
		Delta   struct{ Content string } `json:"delta"`
	} `json:"choices"`
	Error *struct {
		Code    any    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func readWhole(raw []byte, r *history.Request) error {
	var v answer
	if err := json.Unmarshal(raw, &v); err != nil {
		r.Code = fmt.Sprintf("%.80s", raw) // such as Envoy's own plain text
		return nil                         //nolint:nilerr // what came is judged, not failed
	}
	if v.Error != nil {
		r.Code = fmt.Sprintf("%v: %s", v.Error.Code, v.Error.Message)
		return nil
	}
	if len(v.Choices) > 0 {
		r.Text, r.Whole = v.Choices[0].Message.Content, true
	}
	return nil
}

// readStream reads events to the end of the body.
func readStream(in io.Reader, r *history.Request) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 16<<10), 8<<20)
	var text strings.Builder
	defer func() { r.Text = text.String() }()
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if r.Done+r.Errors > 0 {
			r.Late++
		}
		if string(data) == "[DONE]" {
			r.Done++
			continue
		}
		var v answer
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("event %.80q: %w", data, err)
		}
		if v.Error != nil {
			r.Errors++
			r.Code = fmt.Sprintf("%v: %s", v.Error.Code, v.Error.Message)
			continue
		}
		if len(v.Choices) > 0 && v.Choices[0].Delta.Content != "" {
			text.WriteString(v.Choices[0].Delta.Content)
		}
	}
	return lines.Err()
}
