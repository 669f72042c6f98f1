package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"pointsman/fleet"
)

// result is how a probe ended; the values of the metrics' label.
type result string

const (
	ok      result = "ok"
	refused result = "refused" // no connection
	timeout result = "timeout" // of the whole probe
	status  result = "status"  // an answer that is not 2xx
	broken  result = "error"   // a connection that breaks, or an answer that is no HTTP
	skipped result = "skipped" // nothing to ask at
)

func results() []result { return []result{ok, refused, timeout, status, broken, skipped} }

// probe asks w once.
func (p *Prober) probe(ctx context.Context, cfg *Config, w *fleet.Worker) result {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	if cfg.Type == NATS {
		return p.ping(ctx, w)
	}
	port := w.Port
	if cfg.Port != 0 {
		port = cfg.Port
	}
	address := net.JoinHostPort(w.Host, strconv.Itoa(port))
	conn, err := p.deps.Dial(ctx, "tcp", address)
	if err != nil {
		return failure(ctx, err, refused)
	}
	defer func() { _ = conn.Close() }()
	if cfg.Type == TCP {
		return ok
	}
	if until, has := ctx.Deadline(); has {
		_ = conn.SetDeadline(until)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if cfg.Type == HTTPS {
		conn = tls.Client(conn, &tls.Config{ServerName: w.Host, InsecureSkipVerify: true}) //nolint:gosec // see HTTPS
	}
	return get(ctx, conn, address, cfg.Path)
}

func (p *Prober) ping(ctx context.Context, w *fleet.Worker) result {
	if w.PingSubject == "" || p.deps.Ping == nil {
		return skipped
	}
	switch err := p.deps.Ping(ctx, w.PingSubject); {
	case err == nil:
		return ok
	case errors.Is(err, ErrNoNews):
		return skipped
	default:
		return failure(ctx, err, refused)
	}
}

// failure tells a time-out from what else went wrong.
func failure(ctx context.Context, err error, other result) result {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return timeout
	}
	return other
}

// statusLine is how much of an answer tells its status: "HTTP/1.1 200".
const statusLine = len("HTTP/1.1 200")

// maxAnswer is how much of an answer is read for the connection to end in peace.
const maxAnswer = 4 << 10

// get sends a GET on conn and judges the answer by its status line. It is done
// by hand because it is all that is needed, five times a second for each of
// hundreds of workers.
func get(ctx context.Context, conn net.Conn, host, path string) result {
	request := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: pointsman-probe\r\nAccept: */*\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		return failure(ctx, err, broken)
	}
	var buf [maxAnswer]byte
	n, err := io.ReadAtLeast(conn, buf[:], statusLine)
	if err != nil {
		return failure(ctx, err, broken)
	}
	head := buf[:statusLine]
	if !bytes.HasPrefix(head, []byte("HTTP/1.")) || head[8] != ' ' {
		return broken
	}
	code, err := strconv.Atoi(string(head[9:]))
	if err != nil {
		return broken
	}
	if n < len(buf) { // else closing would reset the connection, which servers complain of
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, _ = io.ReadFull(conn, buf[n:])
	}
	if code < 200 || code > 299 {
		return status
	}
	return ok
}
