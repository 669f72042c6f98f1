package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// extProcBody is one request, built beforehand so that the client's own work on
// it does not count.
type extProcBody struct {
	size   int
	head   *extprocv3.ProcessingRequest
	chunks []*extprocv3.ProcessingRequest
}

const (
	bodyGroups    = 16       // distinct prefixes
	bodyVariants  = 128      // requests of each size
	sharedPercent = 80       // of a prompt, from its start, that a group has in common
	requestChunk  = 64 << 10 // bytes of a body in one message
)

// bodySource gives the bodies of n requests: one for each, or fewer that are sent
// again and again.
type bodySource func(n int) []extProcBody

func sameBodies(bodies []extProcBody) bodySource {
	return func(int) []extProcBody { return bodies }
}

// extProcBodies makes chat requests whose prompts have about the given size.
func extProcBodies(size int) []extProcBody {
	shared := size * sharedPercent / 100
	prefixes := make([]string, bodyGroups)
	for i := range prefixes {
		prefixes[i] = words(rand.New(rand.NewPCG(uint64(i), 1)), shared) //nolint:gosec // the same text in every run
	}
	bodies := make([]extProcBody, bodyVariants)
	for i := range bodies {
		tail := words(rand.New(rand.NewPCG(uint64(i), 2)), size-shared) //nolint:gosec // the same text in every run
		text := prefixes[i%bodyGroups] + tail
		raw, err := json.Marshal(map[string]any{
			"model": extProcModel, "stream": true, "max_tokens": 16,
			"messages": []map[string]string{{"role": "user", "content": text}},
		})
		if err != nil { // strings always marshal
			panic(err)
		}
		bodies[i] = newExtProcBody(i, raw)
	}
	return bodies
}

func newExtProcBody(i int, raw []byte) extProcBody {
	b := extProcBody{size: len(raw)}
	b.head = &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: rawHeaders(
			":method", "POST", ":path", "/v1/chat/completions", ":authority", "gateway", "content-type", "application/json",
			"x-request-id", "bench-"+strconv.Itoa(i), "content-length", strconv.Itoa(len(raw)),
		)},
	}}
	for rest := raw; len(rest) > 0; {
		n := min(requestChunk, len(rest))
		b.chunks = append(b.chunks, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: rest[:n], EndOfStream: n == len(rest)},
		}})
		rest = rest[n:]
	}
	return b
}

// words is text of n bytes in random words.
func words(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		for range 3 + r.IntN(6) {
			b.WriteByte("abcdefghijklmnopqrstuvwxyz"[r.IntN(26)])
		}
		b.WriteByte(' ')
	}
	return b.String()[:n]
}

func rawHeaders(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for pair := range slices.Chunk(pairs, 2) {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pair[0], RawValue: []byte(pair[1])})
	}
	return m
}

// extProcClient plays Envoy on one connection.
type extProcClient struct {
	conn     *grpc.ClientConn
	stub     extprocv3.ExternalProcessorClient
	bodies   []extProcBody
	response []*extprocv3.ProcessingRequest // what follows the request; nil for nothing

	// ended, unless nil, is told by what headers a request was routed when its stream
	// ends, and only the head of the response is shown.
	ended func(route map[string]string) error
}

func dialExtProc(addr string, chunks int) (*extProcClient, error) {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(8<<20))
	if err != nil {
		return nil, err
	}
	c := &extProcClient{conn: conn, stub: extprocv3.NewExternalProcessorClient(conn)}
	if chunks > 0 {
		c.response = streamedResponse(chunks)
	}
	return c, nil
}

func (c *extProcClient) close() { _ = c.conn.Close() }

// streamedResponse is an event stream of n chunks, the last with the usage.
func streamedResponse(n int) []*extprocv3.ProcessingRequest {
	event := `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"hello "},"finish_reason":null}]}` + "\n\n"
	last := `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":256,"completion_tokens":200,"total_tokens":456,"prompt_tokens_details":{"cached_tokens":192}}}` + "\n\ndata: [DONE]\n\n"
	msgs := []*extprocv3.ProcessingRequest{{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: rawHeaders(":status", "200", "content-type", "text/event-stream")},
	}}}
	for i := range n {
		text, eos := event, i == n-1
		if eos {
			text = last
		}
		msgs = append(msgs, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
			ResponseBody: &extprocv3.HttpBody{Body: []byte(text), EndOfStream: eos},
		}})
	}
	return msgs
}

// run does n requests, extProcStreams at a time, and returns how long all took
// and each one's milliseconds from its first message to its last body answer.
func (c *extProcClient) run(ctx context.Context, n int) (time.Duration, []float64, error) {
	latencies := make([]float64, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, extProcStreams)
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(n)*time.Millisecond*20)
	defer cancel()
	began := time.Now()
	for range extProcStreams {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				took, err := c.one(ctx, &c.bodies[i%len(c.bodies)])
				if err != nil {
					failed <- err
					cancel()
					return
				}
				latencies[i] = took.Seconds() * 1000
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	select {
	case err := <-failed:
		return 0, nil, err
	default:
		return took, latencies, nil
	}
}

func (c *extProcClient) one(ctx context.Context, b *extProcBody) (time.Duration, error) {
	began := time.Now()
	stream, err := c.stub.Process(ctx)
	if err != nil {
		return 0, err
	}
	if err = send(stream, b.head); err != nil {
		return 0, err
	}
	if err = send(stream, b.chunks...); err != nil {
		return 0, err
	}
	route, err := expectRoute(stream)
	if err != nil {
		return 0, err
	}
	if err = expectBody(stream, b.size); err != nil {
		return 0, err
	}
	took := time.Since(began)
	if c.response != nil {
		if err = send(stream, c.response...); err != nil {
			return 0, err
		}
		if c.ended != nil {
			err = expectHead(stream)
		} else {
			err = expectBody(stream, -1)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := stream.CloseSend(); err != nil {
		return 0, err
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, err
		}
	}
	if c.ended != nil {
		return took, c.ended(headersOf(route))
	}
	return took, nil
}

// headersOf returns the headers that an answer sets.
func headersOf(r *extprocv3.ProcessingResponse) map[string]string {
	m := map[string]string{}
	for _, h := range r.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		m[h.GetHeader().GetKey()] = string(h.GetHeader().GetRawValue())
	}
	return m
}

// expectHead wants the answer to the response's head.
func expectHead(stream extprocv3.ExternalProcessor_ProcessClient) error {
	r, err := stream.Recv()
	if err != nil {
		return fmt.Errorf("no answer to the response: %w", err)
	}
	if r.GetResponseHeaders() == nil {
		return fmt.Errorf("unexpected answer: %.300v", r)
	}
	return nil
}

func send(stream extprocv3.ExternalProcessor_ProcessClient, msgs ...*extprocv3.ProcessingRequest) error {
	for _, m := range msgs {
		if err := stream.Send(m); err != nil {
			if errors.Is(err, io.EOF) { // the reason is with the receiver
				_, err = stream.Recv()
			}
			return fmt.Errorf("send: %w", err)
		}
	}
	return nil
}

// expectRoute wants the headers answer, with a destination.
func expectRoute(stream extprocv3.ExternalProcessor_ProcessClient) (*extprocv3.ProcessingResponse, error) {
	r, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("no answer to the headers: %w", err)
	}
	for _, h := range r.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" && len(h.GetHeader().GetRawValue()) > 0 {
			return r, nil
		}
	}
	return nil, fmt.Errorf("the answer to the headers names no destination: %.300v", r)
}

// expectBody wants streamed body answers up to the end of the stream, of size
// bytes in all unless that is negative.
func expectBody(stream extprocv3.ExternalProcessor_ProcessClient, size int) error {
	got := 0
	for {
		r, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("the body did not come back: %w", err)
		}
		answer := r.GetRequestBody()
		if answer == nil {
			answer = r.GetResponseBody()
		}
		piece := answer.GetResponse().GetBodyMutation().GetStreamedResponse()
		if piece == nil {
			if r.GetResponseHeaders() != nil {
				continue
			}
			return fmt.Errorf("unexpected answer: %.300v", r)
		}
		got += len(piece.GetBody())
		if piece.GetEndOfStream() {
			break
		}
	}
	if size >= 0 && got != size {
		return fmt.Errorf("%d bytes of the body came back, want %d", got, size)
	}
	return nil
}
