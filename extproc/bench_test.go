package extproc

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pointsman/fleet"
)

// BenchmarkRequest is one request through this room and those behind it, from
// the received bytes to the answers, without a transport.
func BenchmarkRequest(b *testing.B) {
	for _, workers := range []int{8, 200} {
		for _, size := range []int{1 << 10, 100 << 10} {
			b.Run(fmt.Sprintf("workers=%d/bytes=%d", workers, size), func(b *testing.B) {
				w := buildWorld(b, testConfig(), manyWorkers(workers)...)
				w.server.pool.dirty = nil
				head := w.wireMessage(post(chatPath))
				body := w.wireMessage(requestBody(chat("m", strings.Repeat("hello ", size/6)), true))
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					c := w.server.acquire()
					w.deliver(c, head)
					w.deliver(c, body)
					w.server.release(context.Background(), c)
				}
			})
		}
	}
}

// BenchmarkResponseChunk is one event of a stream that passes.
func BenchmarkResponseChunk(b *testing.B) {
	w := buildWorld(b, testConfig(), mixed(workerID, "m"))
	w.server.pool.dirty = nil
	c := w.server.acquire()
	defer w.server.release(context.Background(), c)
	w.deliver(c, w.wireMessage(post(chatPath)))
	w.deliver(c, w.wireMessage(requestBody(chat("m", "hello"), true)))
	w.deliver(c, w.wireMessage(responseHeaders(false, ":status", "200")))
	chunk := w.wireMessage(responseBody(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"hello "}}]}`+"\n\n", false))
	b.ReportAllocs()
	for b.Loop() {
		w.deliver(c, chunk)
	}
}

func manyWorkers(n int) []*fleet.Worker {
	all := make([]*fleet.Worker, n)
	for i := range all {
		all[i] = mixed(fmt.Sprintf("10.0.%d.%d:30000", i/250, 1+i%250), "m")
	}
	return all
}
