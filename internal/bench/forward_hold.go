package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// holdBound bounds how long the worker may take to see clients come or go.
const holdBound = 20 * time.Second

// weigh opens n silent streams through the forwarder and returns how many KB of
// resident memory each adds.
func (rig *forwardRig) weigh(ctx context.Context, n int) (float64, error) {
	// A few first: pools, code and tables are not the streams' weight.
	load := &forwardLoad{part: rig.forwarder, mode: modeSSE, c: 8, most: 200}
	_, err := load.run(ctx, time.Minute)
	load.close()
	if err != nil {
		return 0, err
	}
	before, err := RSS(rig.forwarder.pid)
	if err != nil {
		return 0, err
	}
	held, err := rig.hold(ctx, holdOpen+"w", n)
	defer closeAll(held)
	if err != nil {
		return 0, err
	}
	after, err := RSS(rig.forwarder.pid)
	if err != nil {
		return 0, err
	}
	closeAll(held)
	per := Round(float64(after-before)/1024/float64(n), 1)
	fmt.Fprintf(rig.log, "%d open streams: %.1f KB each\n", n, per)
	_, err = rig.await(ctx, "its clients to leave", func(l *forwardLeft) bool { return l.Waiting == 0 })
	return per, err
}

// leave lets n clients of a worker leave, half of them before its head, and
// returns the longest time until the worker saw it, in milliseconds.
func (rig *forwardRig) leave(ctx context.Context, n int) (float64, error) {
	worst := 0.0
	for _, kind := range []string{holdOpen, holdSilent} {
		held, err := rig.hold(ctx, kind+"l", n)
		if err != nil {
			closeAll(held)
			return 0, err
		}
		gone := make(map[string]int64, n)
		for i, c := range held {
			gone[kind+"l"+strconv.Itoa(i)] = time.Now().UnixNano()
			_ = c.Close()
		}
		seen, err := rig.await(ctx, "its clients to leave", func(l *forwardLeft) bool { return l.Waiting == 0 })
		if err != nil {
			return 0, err
		}
		for id, at := range gone {
			saw, ok := seen.Left[id]
			if !ok {
				return 0, fmt.Errorf("the worker never saw %s leave", id)
			}
			worst = max(worst, float64(saw-at)/1e6)
		}
	}
	fmt.Fprintf(rig.log, "%d clients left: seen within %.1f ms\n", 2*n, worst)
	return Round(worst, 1), nil
}

// hold opens n requests that the worker keeps waiting.
func (rig *forwardRig) hold(ctx context.Context, what string, n int) ([]net.Conn, error) {
	held, failures := make([]net.Conn, n), make([]error, n)
	gate := make(chan struct{}, 4*runtime.NumCPU())
	var openers sync.WaitGroup
	for i := range n {
		gate <- struct{}{}
		openers.Go(func() {
			defer func() { <-gate }()
			held[i], failures[i] = rig.holdOne(ctx, what, i)
		})
	}
	openers.Wait()
	if err := errors.Join(failures...); err != nil {
		return held, err
	}
	_, err := rig.await(ctx, "its clients to come", func(l *forwardLeft) bool { return l.Waiting == n })
	return held, err
}

func (rig *forwardRig) holdOne(ctx context.Context, what string, i int) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", rig.forwarder.addr)
	if err != nil {
		return nil, err
	}
	if _, err = c.Write(forwardRequest(rig.worker.addr, what+strconv.Itoa(i))); err != nil {
		return c, err
	}
	if what[:len(holdOpen)] == holdOpen { // its head and first event are there
		_ = c.SetReadDeadline(time.Now().Add(holdBound))
		err = readHead(bufio.NewReaderSize(c, 1<<10))
	}
	return c, err
}

// await asks the worker until cond holds.
func (rig *forwardRig) await(ctx context.Context, what string, cond func(*forwardLeft) bool) (*forwardLeft, error) {
	ctx, cancel := context.WithTimeout(ctx, holdBound)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+rig.worker.addr+leftPath, http.NoBody)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, fmt.Errorf("wait for the worker to see %s: %w", what, err)
		}
		var got forwardLeft
		err = json.NewDecoder(resp.Body).Decode(&got)
		_ = resp.Body.Close()
		if err != nil {
			return nil, err
		}
		if cond(&got) {
			return &got, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the worker to see %s: %d wait: %w", what, got.Waiting, ctx.Err())
		case <-tick.C:
		}
	}
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}
