package bench

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// forwardTestPart is a handler as a part of the measurement.
func forwardTestPart(t *testing.T, name string, h http.Handler) *forwardPart {
	t.Helper()
	web := httptest.NewServer(h)
	t.Cleanup(web.Close)
	return &forwardPart{process: &process{name: name, addr: web.Listener.Addr().String(), pid: os.Getpid()}, worker: "w"}
}

func TestTheForwardLoadReadsWholeAnswersOfWorkerAndReference(t *testing.T) {
	worker := forwardTestPart(t, "worker", newForwardWorker())
	reference := forwardTestPart(t, "reference", referenceProxy(worker.addr))
	rig := &forwardRig{worker: worker, log: io.Discard}
	for _, part := range []*forwardPart{worker, reference} {
		for _, mode := range []string{modeUnary, modeSSE} {
			load := &forwardLoad{part: part, mode: mode, c: 2}
			defer load.close()
			got, err := rig.round(t.Context(), load, 50*time.Millisecond)
			if err != nil || got.done == 0 || got.cut != 0 || got.rps <= 0 || got.p50 <= 0 {
				t.Errorf("%s, %s: %+v, %v", part.name, mode, got, err)
			}
		}
	}
}

func TestTheForwardLoadCountsStreamsThatEndEarly(t *testing.T) {
	ends := map[string]func(w http.ResponseWriter){
		"without [DONE]":   func(http.ResponseWriter) {},
		"in a broken body": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			part := forwardTestPart(t, "cutter", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for range sseEvents {
					_, _ = io.WriteString(w, natsEvent)
					_ = http.NewResponseController(w).Flush()
				}
				end(w)
			}))
			for _, lean := range []bool{false, true} {
				load := &forwardLoad{part: part, mode: modeSSE, c: 2, lean: lean, most: 6}
				got, err := load.run(t.Context(), time.Minute)
				load.close()
				if err != nil || got.done != 6 || got.cut != 6 {
					t.Errorf("lean %v: %+v, %v; want 6 of 6 cut", lean, got, err)
				}
			}
		})
	}
}

func TestTheForwardWorkerNotesWhoLeaves(t *testing.T) {
	worker := forwardTestPart(t, "worker", newForwardWorker())
	rig := &forwardRig{worker: worker, forwarder: worker, log: io.Discard}
	worker.worker = worker.addr
	worst, err := rig.leave(t.Context(), 3)
	if err != nil || worst < 0 || worst > 10_000 {
		t.Errorf("seen within %v ms, %v", worst, err)
	}
}
