package remote

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/prompt"
)

// The cost on the router's side: of an answer that is known, and of an exchange
// over loopback with a worker that takes no time.
func BenchmarkTokenize(b *testing.B) {
	for _, kb := range []int{1, 20, 60} {
		ids := strings.TrimSuffix(strings.Repeat("12345,", kb*256), ",") // 4 bytes of text each
		answer := fmt.Sprintf(`{"count":%d,"max_model_len":4096,"tokens":[%s]}`, kb*256, ids)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, answer)
		}))
		var store fleet.Store
		fleet.NewFeed(&store).Replace([]*fleet.Worker{worker("a", srv.URL)})
		var r prompt.Request
		if err := r.Scan(prompt.Chat, nil, []byte(`{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("abc ", kb*256)+`"}]}`)); err != nil {
			b.Fatal(err)
		}
		for name, cacheBytes := range map[string]int{"known": 1 << 20, "exchange": 0} {
			b.Run(fmt.Sprintf("%dKB/%s", kb, name), func(b *testing.B) {
				cfg := patient()
				cfg.CacheBytes = cacheBytes
				tok := New(cfg, &store, slog.New(slog.DiscardHandler))
				defer tok.Close()
				var dst []uint32
				b.SetBytes(int64(kb << 10))
				b.ReportAllocs()
				for b.Loop() {
					var err error
					if dst, err = tok.Tokenize(b.Context(), &r, dst[:0]); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		srv.Close()
	}
}
