package extproc

import (
	"fmt"
	"strings"
	"testing"

	"pointsman/internal/testkit"
)

// TestBodiesOfAllRequestsShareOneBudget fills the memory for bodies with a
// request that does not end: the next is refused, and when the first has been
// picked for, or has gone, there is room again.
func TestBodiesOfAllRequestsShareOneBudget(t *testing.T) {
	cfg := testConfig()
	cfg.MaxBody, cfg.MaxBuffered = 1000, 1000
	w := newWorld(t, cfg, mixed("10.0.0.1:30000", "m"))
	half := strings.Repeat(" ", 900)

	slow := w.open()
	slow.send(post(chatPath), requestBody(half, false))
	held(t, w, 900)
	refused := w.open()
	refused.send(post(chatPath), requestBody(half, false))
	checkOpenAIError(t, refused.immediate(), 429, "admission_memory", true)
	held(t, w, 900)

	slow.send(requestBody(chat("m", "x"), true)) // its headers are answered and its body goes on
	slow.routedHeaders()
	held(t, w, 0)

	aborted := w.open()
	aborted.send(post(chatPath), requestBody(half, false))
	held(t, w, 900)
	aborted.cancel()
	held(t, w, 0)
}

// held waits until the server counts that many bytes.
func held(t *testing.T, w *world, want int64) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("%d bytes of bodies held", want), func() bool { return w.server.bodies.Used() == want },
		func() string { return fmt.Sprintf("%d bytes", w.server.bodies.Used()) })
}
