package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	httptransport "pointsman/plugins/transport/http"
	natstransport "pointsman/plugins/transport/nats"
	"pointsman/wire"
)

func TestBothTransportsGetTheSameAnswersFromTheBenchWorker(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(natsOverHTTP))
	defer web.Close()
	broker := testfleet.StartNATS(t, nil)
	nc := broker.Connect(t)
	id := web.Listener.Addr().String()
	if _, err := nc.Subscribe(wire.RequestSubject(id), func(m *nats.Msg) { natsOverNATS(nc, m) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over, join, err := natsTransports(ctx, natsChild{Worker: id, Broker: broker.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer join()
	defer cancel()
	host, port := "127.0.0.1", web.Listener.Addr().String()[len("127.0.0.1:"):]
	w := &fleet.Worker{ID: id, URL: web.URL, Host: host, DPRank: -1}
	for _, c := range port {
		w.Port = 10*w.Port + int(c-'0')
	}
	for _, tr := range over {
		for _, stream := range []bool{false, true} {
			rate, cost, err := natsRound(t.Context(), tr, w, stream, 50*time.Millisecond)
			if err != nil || rate <= 0 || cost <= 0 {
				t.Errorf("%T, stream %v: %v requests/s, %v µs, %v", tr, stream, rate, cost, err)
			}
		}
	}
	if _, ok := over[0].(*httptransport.Transport); !ok {
		t.Errorf("the first transport is %T", over[0])
	}
	if _, ok := over[1].(*natstransport.Transport); !ok {
		t.Errorf("the second transport is %T", over[1])
	}
	web.Close()
	w.ID = "somebody:1" // on neither path: an answer that does not come is an error, not a number
	for _, tr := range over {
		if _, _, err := natsRound(t.Context(), tr, w, false, 50*time.Millisecond); err == nil {
			t.Errorf("%T: no error without a worker", tr)
		}
	}
}

func TestBenchNATSRefusesFlagsThatMeasureNothing(t *testing.T) {
	for _, args := range []string{"--rounds 0", "--round 1ms", "--dance"} {
		var out bytes.Buffer
		if err := NATS(t.Context(), strings.Fields(args), &out, io.Discard); err == nil || out.Len() > 0 {
			t.Errorf("%s: %v, %q", args, err, out.String())
		}
	}
}
