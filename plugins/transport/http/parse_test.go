package http

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pointsman/forward"
)

func TestStatusLines(t *testing.T) {
	tests := []struct {
		line   string
		status int // 0: malformed
		minor  byte
	}{
		{"HTTP/1.1 200 OK", 200, '1'},
		{"HTTP/1.0 404 Not Found", 404, '0'},
		{"HTTP/1.1 200 ", 200, '1'},
		{"HTTP/1.1 200", 200, '1'},
		{"HTTP/1.1 599 \t x", 599, '1'},
		{"HTTP/1.1 999 x", 999, '1'},
		{"HTTP/1.1  200 OK", 0, 0},
		{"HTTP/1.1 2000 OK", 0, 0},
		{"HTTP/1.1 20", 0, 0},
		{"HTTP/1.1 2x0 OK", 0, 0},
		{"HTTP/1.1 -20 OK", 0, 0},
		{"HTTP/1.1 000 OK", 0, 0},
		{"HTTP/1.2 200 OK", 0, 0},
		{"HTTP/2.0 200 OK", 0, 0},
		{"http/1.1 200 OK", 0, 0},
		{"HTTP/1.1\t200 OK", 0, 0},
		{"HTTP/1.1 200\tOK", 0, 0},
		{"HTTP/1.1 200 O\x00K", 0, 0},
		{"ICY 200 OK", 0, 0},
		{"", 0, 0},
	}
	for _, tc := range tests {
		var status int
		minor, err := parseStatusLine(tc.line, &status)
		if tc.status == 0 {
			if !errors.Is(err, forward.ErrProtocol) {
				t.Errorf("%q: status %d, error %v", tc.line, status, err)
			}
			continue
		}
		if err != nil || status != tc.status || minor != tc.minor {
			t.Errorf("%q: status %d minor %c error %v", tc.line, status, minor, err)
		}
	}
}

func TestHeaderFields(t *testing.T) {
	tests := []struct {
		text string
		want string // sorted lines; "!" for malformed
	}{
		{"", ""},
		{"A: b\r\n", "A: b\r\n"},
		{"content-TYPE:x\r\n", "Content-Type: x\r\n"},
		{"A:  b \t\r\n", "A: b\r\n"},
		{"A:\r\n", "A: \r\n"},
		{"A: b\r\na: c\r\nA: d\r\n", "A: b\r\nA: c\r\nA: d\r\n"},
		{"A: b\r\nB: c\r\nA: d\r\nB: e\r\n", "A: b\r\nA: d\r\nB: c\r\nB: e\r\n"},
		{"A: caf\xe9\r\n", "A: caf\xe9\r\n"},
		{"A: b:c\r\n", "A: b:c\r\n"},
		{" A: b\r\n", "!"},
		{"A: b\r\n c\r\n", "!"},
		{"A : b\r\n", "!"},
		{"A\r\n", "!"},
		{": b\r\n", "!"},
		{"A(x): b\r\n", "!"},
		{"A: b\x7f\r\n", "!"},
		{"A: b\nB: c\r\n", "!"},
		{"A: b\rB: c\r\n", "!"},
		{"A: b", "!"},
		{strings.Repeat("A: b\r\n", maxHeaders+1), "!"},
	}
	for _, tc := range tests {
		var told fields
		err := told.parse(tc.text)
		h := told.header
		if tc.want == "!" {
			if !errors.Is(err, forward.ErrProtocol) {
				t.Errorf("%.60q: %v, error %v", tc.text, h, err)
			}
			continue
		}
		var got strings.Builder
		_ = h.Write(&got)
		if err != nil || got.String() != tc.want {
			t.Errorf("%q: %q, error %v", tc.text, got.String(), err)
		}
	}
}

func TestAppendingToOneHeaderDoesNotChangeItsNeighbour(t *testing.T) {
	var told fields
	if err := told.parse("A: 1\r\nB: 2\r\nC: 3\r\n"); err != nil {
		t.Fatal(err)
	}
	h := told.header
	h.Add("A", "x") // the values share one array
	if h.Get("B") != "2" || h.Get("C") != "3" {
		t.Errorf("%v", h)
	}
}

func TestChunkLines(t *testing.T) {
	tests := []struct {
		line string
		want int64 // -1: malformed
	}{
		{"0", 0},
		{"a", 10},
		{"A", 10},
		{"1f4", 500},
		{"00000000000000a", 10},
		{"fffffffffffffff", 1<<60 - 1},
		{"5;name=value", 5},
		{"5 ;x", 5},
		{"5\t;x", 5},
		{"5;", 5},
		{"1000000000000000", -1},
		{"", -1},
		{";x", -1},
		{" 5", -1},
		{"5 ", -1},
		{"+5", -1},
		{"-5", -1},
		{"0x5", -1},
		{"5g", -1},
		{"5;\x00", -1},
	}
	for _, tc := range tests {
		got, err := parseChunkLine([]byte(tc.line))
		if tc.want < 0 && !errors.Is(err, forward.ErrProtocol) || tc.want >= 0 && (err != nil || got != tc.want) {
			t.Errorf("%q: %d, %v; want %d", tc.line, got, err, tc.want)
		}
	}
}

func TestLengths(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "007": 7, "9223372036854775807": 1<<63 - 1,
		"9223372036854775808": -1, "": -1, "-1": -1, "+1": -1, "1 ": -1, "0x1": -1, "1,1": -1, "1_0": -1, "٣": -1,
	} {
		got, err := parseLength(text)
		if want < 0 && !errors.Is(err, forward.ErrProtocol) || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
}

// Each whole response, cut at each byte: never a clean end, unless the end of the
// connection is the end of the body.
func TestAResponseCutAnywhereIsAnError(t *testing.T) {
	for _, tc := range corpus {
		if tc.class != "" || tc.head || len(tc.raw) > 1000 || tc.status == 204 || tc.status == 304 {
			continue
		}
		headLen := strings.LastIndex(tc.raw, "HTTP/1.") + strings.Index(tc.raw[strings.LastIndex(tc.raw, "HTTP/1."):], "\r\n\r\n") + 4
		byClose := tc.name == "the end of the connection"
		for cut := range len(tc.raw) {
			status, body, err := read([]byte(tc.raw[:cut]), 1000)
			got := class(err)
			switch {
			case cut < headLen:
				if got != "dispatched" && got != "head" {
					t.Errorf("%s, cut at %d in the head: status %d, %v", tc.name, cut, status, err)
				}
			case byClose:
				if err != nil || string(body) != tc.body[:cut-headLen] {
					t.Errorf("%s, cut at %d: body %q, %v", tc.name, cut, body, err)
				}
			case got != "truncated" || !strings.HasPrefix(tc.body, string(body)):
				t.Errorf("%s, cut at %d: status %d body %q, %v", tc.name, cut, status, body, err)
			}
		}
	}
}

// Random bodies in random chunks and segments, on kept connections: both clients
// read the same bytes.
func TestRandomChunksAndSegments(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const rounds = 60
	type exchange struct {
		body, raw string
		cuts      []int
	}
	var plan []exchange
	for range rounds {
		body := strings.Repeat("0123456789abcdef", 1+rng.IntN(4000))[:1+rng.IntN(60000)%16]
		body = strings.Repeat(body, 1+rng.IntN(3000))
		var raw strings.Builder
		raw.WriteString("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for rest := body; rest != ""; {
			n := min(len(rest), 1+rng.IntN(1+rng.IntN(20000)))
			fmt.Fprintf(&raw, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		raw.WriteString("0\r\n\r\n")
		var cuts []int
		for range rng.IntN(6) {
			cuts = append(cuts, rng.IntN(len(raw.String())))
		}
		plan = append(plan, exchange{body, raw.String(), cuts})
	}
	for name, tr := range map[string]*Transport{"own": newTransport(t, nil), "net/http": oracle(t)} {
		var n atomic.Int32
		w := newScripted(t, func(c net.Conn, _ received) bool {
			x := plan[int(n.Add(1)-1)]
			from := 0
			for _, cut := range x.cuts {
				if cut > from {
					_, _ = io.WriteString(c, x.raw[from:cut])
					from = cut
				}
			}
			_, err := io.WriteString(c, x.raw[from:])
			return err == nil
		})
		for i, x := range plan {
			if got := do(t, tr, w.worker(), post("{}")); got.err != nil || got.body != x.body {
				t.Fatalf("%s, exchange %d: %d bytes of %d, error %v", name, i, len(got.body), len(x.body), got.err)
			}
		}
		if n := w.connections(); n != 1 {
			t.Errorf("%s: %d connections, want 1", name, n)
		}
	}
}

// Many requests on shared connections that the worker closes at random: each is
// answered with its own answer, or fails typed; none is mixed up.
func TestManyRequestsShareConnectionsWithoutMixingAnswers(t *testing.T) {
	var served atomic.Int32
	w := newScripted(t, func(c net.Conn, r received) bool {
		n := served.Add(1)
		text := "HTTP/1.1 200 OK\r\nContent-Length: " + fmt.Sprint(len(r.body)) + "\r\n\r\n" + string(r.body)
		if n%11 == 0 {
			_, _ = io.WriteString(c, text[:len(text)-1])
			return false
		}
		_, _ = io.WriteString(c, text)
		return n%7 != 0
	})
	tr := newTransport(t, nil)
	var failed atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 50 {
				want := fmt.Sprintf(`{"i":%d,"j":%d}`, i, j)
				got := do(t, tr, w.worker(), post(want))
				switch {
				case got.err != nil && (got.class == "truncated" || got.class == "dispatched"):
					failed.Add(1)
				case got.err != nil || got.body != want:
					t.Errorf("%s: %q, error %v", want, got.body, got.err)
				}
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n < 20 || n > 200 {
		t.Errorf("%d of 400 requests failed; every eleventh was cut", n)
	}
}

func TestTheStdClientTellsStagesLikeTheOwn(t *testing.T) {
	scripts := map[string]func(net.Conn, received) bool{
		"closed without an answer": say("", false),
		"half a head":              say("HTTP/1.1 200", false),
		"no HTTP":                  say("nonsense\r\n\r\n", false),
		"a cut body":               say("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", false),
	}
	for name, s := range scripts {
		w := newScripted(t, s)
		own, std := do(t, newTransport(t, nil), w.worker(), post("{}")), do(t, oracle(t), w.worker(), post("{}"))
		if own.class != std.class || own.class == "" {
			t.Errorf("%s: own %q (%v), net/http %q (%v)", name, own.class, own.err, std.class, std.err)
		}
		if errors.Is(own.err, forward.ErrProtocol) != errors.Is(std.err, forward.ErrProtocol) {
			t.Errorf("%s: own %v, net/http %v", name, own.err, std.err)
		}
		if n := len(w.requests()); n != 2 {
			t.Errorf("%s: %d deliveries by two clients", name, n)
		}
	}
}

func TestAnH2CWorkerThatIsNotOneIsATypedError(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", false))
	tr := newTransport(t, func(c *Config) { c.Protocol = H2C })
	got := do(t, tr, w.worker(), post("{}"))
	var typed *forward.Error
	if got.err == nil || !errors.As(got.err, &typed) {
		t.Errorf("status %d, error %v", got.status, got.err)
	}
	bad := post("{}")
	bad.Method = "BAD METHOD"
	if got := do(t, tr, w.worker(), bad); got.class != "write" {
		t.Errorf("a bad method: %v", got.err)
	}
}

func TestASourceCanBeTakenBackWhileItIsRead(t *testing.T) {
	data := []byte(strings.Repeat("x", 1000))
	s := &source{data: data}
	first := make([]byte, 10)
	_, _ = s.Read(first)
	s.own()
	for i := range data {
		data[i] = 'y' // the buffer's next user
	}
	rest, err := io.ReadAll(s)
	if err != nil || string(rest) != strings.Repeat("x", 990) {
		t.Errorf("%d bytes, error %v, %.20q", len(rest), err, rest)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAWorkersHostIsWhatItRegistered(t *testing.T) {
	w := newScripted(t, say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true))
	for name, tr := range map[string]*Transport{"own": newTransport(t, nil), "net/http": oracle(t)} {
		req := post("{}")
		req.Header["Accept-Encoding"] = []string{"identity"}
		do(t, tr, w.worker(), req)
		got := w.requests()
		last := got[len(got)-1].head
		if last.Host != w.lis.Addr().String() || last.Header.Get("User-Agent") != "" || last.Header.Get("Accept-Encoding") != "identity" || len(last.Header) != 4 {
			t.Errorf("%s: host %q headers %v", name, last.Host, last.Header)
		}
	}
}
