package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// WorkerHeader is the response header in which a forwarder names the worker
// that answered.
const WorkerHeader = "x-worker-instance-id"

// Observer is told what happens while a plan runs. Any of its functions may be
// nil; they are called from many goroutines and must be quick.
type Observer struct {
	Sent  func(*Request)
	First func(*Result) // the first text of an answer
	Ended func(*Result)
}

// Driver sends plans to an OpenAI endpoint.
type Driver struct {
	URL   string // base, without /v1
	Model string
	// Client defaults to one that keeps as many connections as it needs.
	Client *http.Client
	// Patience bounds one request; 0 is a minute.
	Patience time.Duration
	Observer Observer
}

// NewClient returns an HTTP client for load: it keeps idle connections and
// follows no proxy settings.
func NewClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}}
}

// Run sends the plan and returns when every request has ended, one result per
// request in the plan's order. When ctx ends, running requests are cut and the
// rest are not sent; their results say so.
func (d *Driver) Run(ctx context.Context, plan *Plan) []Result {
	client := d.Client
	if client == nil {
		client = NewClient()
		defer client.CloseIdleConnections()
	}
	results := make([][]Result, len(plan.Conversations))
	var wg sync.WaitGroup
	for i := range plan.Conversations {
		wg.Go(func() { results[i] = d.converse(ctx, client, &plan.Conversations[i]) })
	}
	wg.Wait()
	all := make([]Result, 0, plan.Len())
	for _, part := range results {
		all = append(all, part...)
	}
	return all
}

// converse sends one conversation's requests in turn. A turn that failed does
// not end it: the history does not depend on what the engine said.
func (d *Driver) converse(ctx context.Context, client *http.Client, c *Conversation) []Result {
	results := make([]Result, 0, len(c.Requests))
	for i := range c.Requests {
		request := &c.Requests[i]
		pause := time.NewTimer(request.Wait)
		select {
		case <-ctx.Done():
			pause.Stop()
			results = append(results, Result{Request: request, Err: context.Cause(ctx)})
			continue
		case <-pause.C:
		}
		results = append(results, d.Send(ctx, client, request))
	}
	return results
}

// Send sends one request and reads its answer to the end.
func (d *Driver) Send(ctx context.Context, client *http.Client, request *Request) Result {
	patience := d.Patience
	if patience == 0 {
		patience = time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no end of the answer after %v", patience))
	defer cancel()
	r := Result{Request: request}
	body, err := json.Marshal(map[string]any{
		"model": d.Model, "messages": request.Messages, "max_tokens": request.MaxTokens,
		"stream": true, "stream_options": map[string]any{"include_usage": true},
	})
	if err != nil {
		r.Err = fmt.Errorf("request %s: %w", request.ID, err)
		return r
	}
	r.Sent = time.Now()
	if d.Observer.Sent != nil {
		d.Observer.Sent(request)
	}
	if err := d.exchange(ctx, client, body, &r); err != nil {
		r.Err = fmt.Errorf("request %s: %w", request.ID, err)
	}
	r.End = time.Now()
	if d.Observer.Ended != nil {
		d.Observer.Ended(&r)
	}
	return r
}

// exchange does the HTTP part of a request and fills in r.
func (d *Driver) exchange(ctx context.Context, client *http.Client, body []byte, r *Result) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err //nolint:wrapcheck // Send names the request
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", r.Request.ID)
	resp, err := client.Do(req)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	defer resp.Body.Close()
	r.Status, r.Worker = resp.StatusCode, resp.Header.Get(WorkerHeader)
	if resp.StatusCode != http.StatusOK {
		raw, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		r.Detail = excerpt(raw)
		return err //nolint:wrapcheck // Send names the request
	}
	return readEvents(resp.Body, func(data []byte) {
		texts := r.Texts
		r.event(data, time.Now())
		if texts == 0 && r.Texts > 0 && d.Observer.First != nil {
			d.Observer.First(r)
		}
	})
}

// maxEvent bounds one line of a stream.
const maxEvent = 16 << 20

// readEvents calls handle with the data of each server-sent event, whose bytes
// are valid until it returns. It returns nil at a clean end of the stream.
func readEvents(in io.Reader, handle func(data []byte)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 16<<10), maxEvent)
	var data []byte
	open := false
	for lines.Scan() {
		line := lines.Bytes()
		switch {
		case len(line) == 0:
			if open {
				handle(data)
			}
			data, open = data[:0], false
		case bytes.HasPrefix(line, []byte("data:")):
			if open {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(line[len("data:"):], []byte(" "))...)
			open = true
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("stream: %w", err)
	}
	if open {
		return fmt.Errorf("stream: %w within an event", io.ErrUnexpectedEOF)
	}
	return nil
}
