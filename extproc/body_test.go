package extproc

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/mem"
)

// poisoned is a pool that overwrites what it takes back, so that a use after
// free shows as wrong bytes.
func poisoned() *bufferPool {
	return &bufferPool{dirty: func(b []byte) {
		for i := range b {
			b[i] = 0xdb
		}
	}}
}

func TestPoolGivesTheLengthAskedFor(t *testing.T) {
	p := poisoned()
	for _, n := range []int{0, 1, 2047, 2048, 2049, 62000, 1 << 20, 1<<20 + 1, 1<<26 + 1} {
		b := p.Get(n)
		if len(*b) != n {
			t.Errorf("Get(%d) has length %d", n, len(*b))
		}
		if n <= 1<<maxTier && (cap(*b)&(cap(*b)-1) != 0 || cap(*b) > max(4*n, 1<<minTier)) {
			t.Errorf("Get(%d) has capacity %d", n, cap(*b))
		}
		p.Put(b)
	}
}

func TestGatheredBodyIsTheChunksInOrder(t *testing.T) {
	cases := []struct {
		name   string
		chunks []int
		expect int
	}{
		{"no chunk", nil, 0},
		{"one empty chunk", []int{0}, 0},
		{"one chunk", []int{1000}, 1000},
		{"one chunk and an empty end", []int{5000, 0}, 0},
		{"many chunks, length unknown", []int{16384, 16384, 1, 16384, 0, 300000}, 0},
		{"many chunks, length known", []int{16384, 16384, 16384}, 3 * 16384},
		{"chunks beyond a whole buffer", slices.Repeat([]int{40000}, 300), 0},
		{"a chunk over several pieces", []int{3 << 20, 2 << 20, 5, 3 << 20, 0, 1}, 0},
		{"a large chunk first", []int{6 << 20, 1, 2 << 20}, 0},
		{"a content-length that is too small", []int{16384, 16384, 16384}, 5},
		{"a content-length that is absurd", []int{10, 10}, 1 << 40},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			pool := poisoned()
			g := gather{pool: pool, expect: c.expect}
			var want bytes.Buffer
			for i, n := range c.chunks {
				body := strings.Repeat(fmt.Sprintf("%d,", i), n)[:n]
				want.WriteString(body)
				wire := mustMarshal(t, requestBody(body, false))
				handle := pool.Get(len(wire))
				copy(*handle, wire)
				var m message
				m.read(mem.NewBuffer(handle, pool))
				g.add(&m)
				m.free()
			}
			if !bytes.Equal(g.bytes(), want.Bytes()) {
				t.Fatal("bytes() is not the chunks")
			}
			buf, from, to := g.take()
			if !bytes.Equal(buf.ReadOnlyData()[from:to], want.Bytes()) {
				t.Error("take() is not the chunks")
			}
			buf.Free()
			if len(g.bytes()) != 0 {
				t.Error("the body is still there after take()")
			}
			g.reset()
		})
	}
}
