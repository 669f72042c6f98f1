package bench

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"pointsman/wire"
)

// What the worker is asked and answers.
const (
	natsUnaryBody  = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	natsStreamBody = `{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":true}`
	natsAnswer     = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hello"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
	natsEvent      = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"finish_reason":null,"delta":{"content":"tok "}}]}` + "\n\n"
	natsDone       = "data: [DONE]\n\n"
)

// natsServe is the measured side: a broker and a worker that answers at once, by
// HTTP and by NATS, until standard input ends.
func natsServe(ctx context.Context, out io.Writer) error {
	store, err := os.MkdirTemp("", "pointsman-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(store)
	broker, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true, StoreDir: store})
	if err != nil {
		return err
	}
	broker.Start()
	defer broker.WaitForShutdown()
	defer broker.Shutdown()
	if !broker.ReadyForConnections(10 * time.Second) {
		return errors.New("the broker does not become ready")
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: http.HandlerFunc(natsOverHTTP), ReadHeaderTimeout: time.Minute}
	go func() { _ = web.Serve(l) }() // ends with Close
	defer web.Close()
	nc, err := nats.Connect(broker.ClientURL())
	if err != nil {
		return err
	}
	defer nc.Close()
	id := l.Addr().String()
	if _, err = nc.Subscribe(wire.RequestSubject(id), func(m *nats.Msg) { go natsOverNATS(nc, m) }); err != nil {
		return err
	}
	if err = nc.Flush(); err != nil {
		return err
	}
	if err = PrintJSON(out, natsChild{Worker: id, Broker: broker.ClientURL()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// natsOverHTTP answers a request.
func natsOverHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if !strings.Contains(string(body), `"stream":true`) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, natsAnswer) // the client may be gone
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for range natsEvents {
		if _, err := io.WriteString(w, natsEvent); err != nil {
			return
		}
		if err := out.Flush(); err != nil { // an engine sends each token as it is made
			return
		}
	}
	_, _ = io.WriteString(w, natsDone)
}

// natsOverNATS answers a request as Infera's worker frames it, empty
// acknowledgment included.
func natsOverNATS(nc *nats.Conn, m *nats.Msg) {
	env, err := wire.DecodeEnvelope(m.Data)
	if err != nil {
		return
	}
	say := func(kind, data string) {
		h := nats.Header{wire.HeaderType: {kind}}
		if kind == "done" {
			h[wire.HeaderStatus] = []string{"200"}
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: m.Header.Get(wire.HeaderInbox), Header: h, Data: []byte(data)}) // the router may be gone
	}
	if strings.Contains(string(env.Body), `"stream":true`) {
		for range natsEvents {
			say("data", natsEvent)
		}
		say("data", natsDone)
	} else {
		say("data", natsAnswer)
	}
	say("done", "")
	_ = m.Respond(nil)
}
