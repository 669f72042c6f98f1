package wire

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"pointsman/fleet"
	"pointsman/kvindex"
)

// capture opens a file of the whole capture, of which testdata holds a part.
func capture(t *testing.T, name string) *os.File {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "shared", "wire", name))
	if err != nil {
		t.Skip("the whole capture is not at hand")
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func TestTheWholeCaptureOfEvents(t *testing.T) {
	lines := bufio.NewScanner(capture(t, "zmq_kv_events.jsonl"))
	lines.Buffer(nil, 1<<20)
	kinds := map[kvindex.Kind]int{}
	b := new(kvindex.Batch)
	for lines.Scan() {
		var c struct {
			Hex     []string
			Decoded []json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if err := DecodeBatch(unhex(t, c.Hex[len(c.Hex)-1]), b); err != nil {
			t.Fatal(err)
		}
		want := capturedEvents(t, c.Decoded[1])
		if b.Skipped != 0 || len(b.Events) != len(want) {
			t.Fatalf("%d events and %d skipped of %s", len(b.Events), b.Skipped, c.Decoded[1])
		}
		for i := range want {
			if b.Events[i].Kind != want[i].Kind || !equalTokens(b.Events[i].Tokens, widen(want[i].Tokens)) {
				t.Fatalf("got %+v, want %+v", b.Events[i], want[i])
			}
			kinds[want[i].Kind]++
		}
	}
	if len(kinds) != 3 {
		t.Errorf("kinds seen: %v", kinds)
	}
}

func TestTheWholeCaptureOfRegistrations(t *testing.T) {
	var byProtocol map[string][]json.RawMessage
	if err := json.NewDecoder(capture(t, "pd_registrations.json")).Decode(&byProtocol); err != nil {
		t.Fatal(err)
	}
	for protocol, records := range byProtocol {
		for _, raw := range records {
			w, err := DecodeRegistration("", raw)
			if err != nil {
				t.Errorf("%s: %v", protocol, err)
				continue
			}
			if w.Protocol != protocol || w.Role == fleet.Mixed || w.Status != fleet.Active {
				t.Errorf("%s: got %+v", protocol, w)
			}
		}
	}
}
