package forward_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"pointsman/breaker"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/kvindex"
	"pointsman/picker"
	"pointsman/prompt"

	httptransport "pointsman/plugins/transport/http"
)

// BenchmarkForward measures one request through the forwarder's handler and the
// HTTP transport; the worker and the client's side of net/http are not counted,
// for the client is a bare writer, but the worker's allocations are.
func BenchmarkForward(b *testing.B) {
	for name, body := range map[string]string{"unary": chatBody, "stream": streamBody} {
		b.Run(name, func(b *testing.B) {
			e := newEngine(b, good)
			store := new(fleet.Store)
			fleet.NewFeed(store).Replace([]*fleet.Worker{worker("w1", e)})
			p, err := picker.New(picker.DefaultConfig(), store, kvindex.New(kvindex.DefaultConfig()), breaker.NewSet(breaker.DefaultConfig()))
			fatal(b, err)
			tr, err := httptransport.New(httptransport.DefaultConfig())
			fatal(b, err)
			defer tr.Close()
			preparer := prompt.NewPreparer(prompt.Config{}, nil)
			srv, err := forward.New(forward.DefaultConfig(), forward.Deps{
				Picker: p, Store: store, Log: slog.New(slog.DiscardHandler),
				Preparer:   func() *prompt.Preparer { return preparer },
				Transports: map[string]forward.Transport{"http": tr},
			})
			fatal(b, err)
			h := srv.Handler()
			b.ReportAllocs()
			for b.Loop() {
				req, _ := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://x/v1/chat/completions", io.NopCloser(strings.NewReader(body)))
				req.ContentLength = int64(len(body))
				rec := &recorder{header: http.Header{}}
				h.ServeHTTP(rec, req)
				if rec.status != 200 {
					b.Fatal(rec.status, rec.body.String())
				}
			}
		})
	}
}
