package zmq

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/kvindex"
)

// The client against the library that engines use. It needs a Python with
// pyzmq, named by POINTSMAN_TEST_PYZMQ.
func TestLibzmq(t *testing.T) {
	python := os.Getenv("POINTSMAN_TEST_PYZMQ")
	if python == "" {
		t.Skip("POINTSMAN_TEST_PYZMQ names no Python with pyzmq")
	}
	cmd := exec.Command(python, "testdata/publisher.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var events, replay int
	if _, err := fmt.Fscan(bufio.NewReader(out), &events, &replay); err != nil {
		t.Fatal(err)
	}
	say := func(verb string, b *kvindex.Batch) {
		t.Helper()
		if _, err := io.WriteString(in, verb+" "+hex.EncodeToString(vllm(b))+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	const n = 3000
	a := testfleet.NewPrompt(1, n)
	say("keep", a.Stored(0, 0, 1))
	v := watch(t, impatient(), worker("w", fmt.Sprintf("tcp://127.0.0.1:%d", events), func(w *fleet.Worker) {
		w.KVReplay = fmt.Sprintf("tcp://127.0.0.1:%d", replay)
	}))
	v.wantDepth("the past", "w", a, 1)
	verb := "send"
	for i := 1; i < n; i++ {
		say(verb, a.Stored(float64(i), i, i+1))
		verb = map[bool]string{true: "keep", false: "send"}[i%97 == 0]
	}
	say("send", &kvindex.Batch{Rank: -1, At: n})
	v.wantDepth("all of it", "w", a, n)
	if testutil.ToFloat64(v.sub.metrics.Replayed) == 0 || testutil.ToFloat64(v.sub.metrics.Reconnects) != 0 {
		t.Errorf("%v replayed, %v reconnects", testutil.ToFloat64(v.sub.metrics.Replayed), testutil.ToFloat64(v.sub.metrics.Reconnects))
	}
}
