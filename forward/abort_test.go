package forward_test

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"
)

// telling answers requests to abort and leaves all others to s; what was aborted
// comes out of the channel.
func telling(s script, name string, told chan<- [2]string) script {
	return func(c net.Conn, r receipt) bool {
		if r.head.URL.Path != "/abort_request" {
			return s(c, r)
		}
		told <- [2]string{name, ridOf(r)}
		return raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(c, r)
	}
}

func ridOf(r receipt) string {
	var v struct{ Rid string }
	_ = json.Unmarshal(r.body, &v)
	return v.Rid
}

func TestAbortRequestReachesBothLegsOfAnSGLangPair(t *testing.T) {
	told := make(chan [2]string, 10)
	decodes := map[string]script{"before the first token": hang, "after it": raw(sseOpen(tok0))}
	for name, decode := range decodes {
		w := newPairWorld(t, "sglang-bootstrap", []script{telling(hang, "prefill", told)}, []script{telling(decode, "decode", told)})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if resp, err := w.client.Do(w.request(ctx, call{body: streamBody})); err == nil {
				<-ctx.Done()
				resp.Body.Close()
			}
		}()
		legs := w.pairs(1)
		left := time.Now()
		cancel()
		<-ended
		for range 2 {
			select {
			case got := <-told:
				for _, pair := range legs {
					for _, leg := range pair {
						if rid := ridOf(leg); len(rid) != 32 || rid != got[1] {
							t.Errorf("%s: %s was told of %q, the leg is %q", name, got[0], got[1], rid)
						}
					}
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: a leg was not aborted", name)
			}
		}
		if took := time.Since(left); took > time.Second {
			t.Errorf("%s: both legs were told after %v", name, took)
		}
		w.settled(1)
	}
}

func TestALegThatHasAnsweredIsNotAborted(t *testing.T) {
	told := make(chan [2]string, 10)
	w := newPairWorld(t, "sglang-bootstrap",
		[]script{telling(hang, "prefill", told)},
		[]script{telling(raw(jsonReply(400, `{"error":{"message":"no"}}`)), "decode", told)})
	if got := w.do(call{body: streamBody}); got.status != 400 {
		t.Errorf("status %d", got.status)
	}
	w.settled(1)
	if got := <-told; got[0] != "prefill" {
		t.Errorf("%s was aborted", got[0])
	}
	if err := w.stop(); err != nil { // returns when every abort has been sent
		t.Error(err)
	}
	if len(told) != 0 {
		t.Errorf("%v was aborted too", <-told)
	}
}
