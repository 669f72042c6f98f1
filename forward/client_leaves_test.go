package forward_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

// A worker hears of a client's leaving on every kind of connection, of every kind of
// request, before its answer has begun and within it, and whatever the connection has
// carried before.
func TestAClientThatLeavesEndsWhatItsWorkerDoes(t *testing.T) {
	post := func(more, body string) string {
		return "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + more + "\r\n" + body
	}
	sized := func(more, body string) string {
		return post(fmt.Sprintf("%sContent-Length: %d\r\n", more, len(body)), body)
	}
	chunked := post("Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(streamBody), streamBody))
	requests := map[string]struct {
		text string
		head bool // the answer has begun
		late bool // the client leaves when the watch for it has begun
	}{
		"at once":        {text: sized("", chatBody)},
		"late":           {text: sized("", chatBody), late: true},
		"in a stream":    {text: sized("", streamBody), head: true, late: true},
		"chunked":        {text: chunked, late: true},
		"in chunked":     {text: chunked, head: true},
		"expecting":      {text: sized("Expect: 100-continue\r\n", streamBody), late: true},
		"without a body": {text: "GET /v1/other HTTP/1.1\r\nHost: x\r\n\r\n", late: true},
	}
	a := testfleet.NewAuthority(t)
	for _, secure := range []bool{false, true} {
		for name, tc := range requests {
			t.Run(fmt.Sprintf("%s, TLS %v", name, secure), func(t *testing.T) {
				reached := make(chan struct{}, 1)
				var options []option
				if secure {
					options = append(options, overTLS(t, a))
				}
				w := newWorld(t, []script{func(c net.Conn, r receipt) bool {
					if r.head.Header.Get("X-Case") == "before" {
						return good(c, r)
					}
					if tc.head {
						_, _ = io.WriteString(c, sseOpen(tok0))
					}
					reached <- struct{}{}
					return hang(c, r)
				}}, options...)
				conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
				fatal(t, err)
				if secure {
					conf := certs(t, a, "gateway").Client().Clone()
					conf.ServerName = "127.0.0.1"
					conn = tls.Client(conn, conf)
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				for range 2 {
					_, err = io.WriteString(conn, sized("X-Case: before\r\n", chatBody))
					fatal(t, err)
					resp, failed := http.ReadResponse(in, nil)
					fatal(t, failed)
					_, err = io.Copy(io.Discard, resp.Body)
					fatal(t, err)
					resp.Body.Close()
				}
				_, err = io.WriteString(conn, tc.text)
				fatal(t, err)
				<-reached
				if tc.late {
					testkit.Pass(60*time.Millisecond, "the watch begins")
				}
				left := time.Now()
				fatal(t, conn.Close())
				if gone := (<-w.engines[0].gone).Sub(left); gone > time.Second {
					t.Errorf("the worker sees it after %v", gone)
				}
				w.settled(3)
				if n := w.count("infera_router_requests_total", "outcome=client_cancel"); n != 1 {
					t.Errorf("%d of 1 counted as left by its client", n)
				}
			})
		}
	}
}

// Clients that send the next request before they have the answer get all of them, in
// order, whether that comes at once or when the watch for the client's leaving runs.
func TestRequestsMayComeBeforeTheAnswers(t *testing.T) {
	for name, late := range map[string]bool{"at once": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			goOn := make(chan struct{})
			w := newWorld(t, []script{func(c net.Conn, r receipt) bool {
				<-goOn
				return raw(jsonReply(200, `{"n":"`+r.head.Header.Get("X-Case")+`"}`))(c, r)
			}})
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			fatal(t, err)
			defer conn.Close()
			const requests = 5
			for n := range requests {
				_, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Case: %d\r\nContent-Length: %d\r\n\r\n%s", n, len(chatBody), chatBody)
				fatal(t, err)
				if late {
					testkit.Pass(30*time.Millisecond, "the watch reads what follows")
				}
			}
			close(goOn)
			in := bufio.NewReader(conn)
			for n := range requests {
				resp, err := http.ReadResponse(in, nil)
				fatal(t, err)
				body, err := io.ReadAll(resp.Body)
				fatal(t, err)
				resp.Body.Close()
				if want := fmt.Sprintf(`{"n":"%d"}`, n); resp.StatusCode != http.StatusOK || string(body) != want {
					t.Errorf("answer %d: status %d, %s", n, resp.StatusCode, body)
				}
			}
		})
	}
}

// net/http's buffer of 4096 bytes is full but for one when it asks for a trailer's last.
func TestABodysTrailerMayFillTheBuffer(t *testing.T) {
	for _, size := range []int{4000, 4096} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			w := newWorld(t, []script{good})
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			fatal(t, err)
			defer conn.Close()
			trailer := "X-T: " + strings.Repeat("a", size-len("X-T: \r\n\r\n")) + "\r\n\r\n"
			for _, part := range []string{
				fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n", len(chatBody), chatBody),
				trailer[:size-1], trailer[size-1:],
			} {
				_, err = io.WriteString(conn, part)
				fatal(t, err)
				testkit.Pass(30*time.Millisecond, "each part is read by itself")
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			fatal(t, err)
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
}
