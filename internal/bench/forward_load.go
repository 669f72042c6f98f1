package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// forwardRound is what one contender did in one round.
type forwardRound struct {
	rps, p50 float64 // requests per second, milliseconds
	cpu      float64 // microseconds per request
	allocs   float64 // per request
	done     int     // answers begun
	cut      int     // of them, streams that ended before their last event
}

// round loads part for the given time and reads what it cost.
func (rig *forwardRig) round(ctx context.Context, part *forwardPart, mode string, c int, length time.Duration) (forwardRound, error) {
	before, err := part.used(ctx)
	if err != nil {
		return forwardRound{}, err
	}
	got, err := (&forwardLoad{part: part, mode: mode, c: c}).run(ctx, length)
	if err != nil {
		return got, fmt.Errorf("%s, %s, %d connections: %w", part.name, mode, c, err)
	}
	after, err := part.used(ctx)
	if err != nil {
		return got, err
	}
	if got.done == 0 {
		return got, fmt.Errorf("%s answered nothing within %v", part.name, length)
	}
	got.cpu = float64((after.cpu - before.cpu).Microseconds()) / float64(got.done)
	got.allocs = (after.allocs - before.allocs) / float64(got.done)
	return got, nil
}

// forwardLoad is a client of c connections. It writes ready-made requests and
// reads no more of the answers than it takes to judge them, so that what is
// measured is not the client.
type forwardLoad struct {
	part *forwardPart
	mode string
	c    int
	most int // requests in all; 0 for no bound

	begun atomic.Int64
	cut   atomic.Int64
}

// errCut is a stream that ended before its last event.
var errCut = errors.New("the stream was cut")

// run sends requests until the time is over or enough are sent.
func (l *forwardLoad) run(ctx context.Context, length time.Duration) (forwardRound, error) {
	request := forwardRequest(l.part.worker, l.mode == modeSSE, "")
	latencies := make([][]float64, l.c)
	failures := make([]error, l.c)
	var clients sync.WaitGroup
	start := time.Now()
	for i := range l.c {
		clients.Go(func() {
			latencies[i], failures[i] = l.client(ctx, request, start.Add(length))
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

// client is one connection's requests.
func (l *forwardLoad) client(ctx context.Context, request []byte, until time.Time) (latencies []float64, err error) {
	var conn net.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	in := bufio.NewReaderSize(nil, 32<<10)
	for ctx.Err() == nil && time.Now().Before(until) {
		if l.most > 0 && l.begun.Add(1) > int64(l.most) {
			break
		}
		if conn == nil {
			if conn, err = new(net.Dialer).DialContext(ctx, "tcp", l.part.addr); err != nil {
				return latencies, err
			}
			in.Reset(conn)
			_ = conn.SetDeadline(until.Add(30 * time.Second)) // what hangs is an error, not a hang
		}
		start := time.Now()
		if _, err = conn.Write(request); err == nil {
			err = l.answer(in)
		}
		latencies = append(latencies, float64(time.Since(start).Nanoseconds())/1e6)
		if errors.Is(err, errCut) {
			l.cut.Add(1)
			_ = conn.Close()
			conn, err = nil, nil
		}
		if err != nil {
			return latencies, err
		}
	}
	return latencies, ctx.Err()
}

// answer reads one answer and checks that all of it came.
func (l *forwardLoad) answer(in *bufio.Reader) error {
	length, chunked, err := readHead(in)
	switch {
	case err != nil:
		return err
	case l.mode == modeUnary:
		if length != len(natsAnswer) {
			return fmt.Errorf("an answer of %d bytes, want %d", length, len(natsAnswer))
		}
		_, err = in.Discard(length)
		return err
	case !chunked:
		return errors.New("the stream's answer is not chunked")
	}
	events := 0
	tail := ""
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return errCut
		}
		size, err := strconv.ParseUint(string(bytes.TrimRight(line, "\r\n")), 16, 31)
		if err != nil {
			return fmt.Errorf("chunk size %q: %w", line, err)
		}
		if size == 0 {
			break
		}
		n, last, err := readChunk(in, int(size))
		if err != nil {
			return errCut
		}
		events, tail = events+n, last
	}
	if _, err := in.Discard(2); err != nil {
		return errCut
	}
	if events != sseEvents+1 || tail != natsDone {
		return errCut
	}
	return nil
}

// readHead reads a response head and checks that it is a 200.
func readHead(in *bufio.Reader) (length int, chunked bool, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return 0, false, fmt.Errorf("response head: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case first:
			if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
				return 0, false, fmt.Errorf("the answer is %q", line)
			}
		case len(line) == 0:
			return length, chunked, nil
		case len(line) > 16 && bytes.EqualFold(line[:16], []byte("content-length: ")):
			if length, err = strconv.Atoi(string(line[16:])); err != nil {
				return 0, false, err
			}
		case bytes.EqualFold(line, []byte("transfer-encoding: chunked")):
			chunked = true
		}
	}
}

// readChunk reads a chunk of whole events and counts them; last is its last
// bytes, as many as the final event has.
func readChunk(in *bufio.Reader, size int) (events int, last string, err error) {
	for size > 0 {
		piece, err := in.Peek(min(size, in.Size()))
		if err != nil {
			return 0, "", err
		}
		events += bytes.Count(piece, []byte("data: "))
		last = string(piece[max(0, len(piece)-len(natsDone)):])
		if _, err := in.Discard(len(piece)); err != nil {
			return 0, "", err
		}
		size -= len(piece)
	}
	_, err = io.CopyN(io.Discard, in, 2)
	return events, last, err
}
