package nats

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/internal/testfleet"
)

// TestAPingTellsWhoAnswers over a real broker: a worker that answers, one that
// is subscribed and does not, and nobody.
func TestAPingTellsWhoAnswers(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	tr := start(t, broker.URL, nil)
	worker, err := nats.Connect(broker.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close()
	for subject, answer := range map[string]func(*nats.Msg){
		"infera.ping.w1": func(m *nats.Msg) { _ = m.Respond(nil) },
		"infera.ping.w2": func(*nats.Msg) {},
	} {
		if _, err := worker.Subscribe(subject, answer); err != nil {
			t.Fatal(err)
		}
	}
	if err := worker.Flush(); err != nil {
		t.Fatal(err)
	}
	for subject, want := range map[string]error{"infera.ping.w1": nil, "infera.ping.w2": context.DeadlineExceeded, "infera.ping.w3": nats.ErrNoResponders} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := tr.Ping(ctx, subject); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", subject, err, want)
		}
		cancel()
	}
}
