package assemble_test

import (
	"io"
	"log/slog"
	"testing"

	"pointsman/config"
	"pointsman/internal/assemble"
)

// TestCacheBlocksAreKnownWhilePicksHeedEvents: Infera says "KV-aware mode
// disabled" when they do not, and so must the page made of this.
func TestCacheBlocksAreKnownWhilePicksHeedEvents(t *testing.T) {
	for name, tt := range map[string]struct {
		args  []string
		score bool
		want  bool
	}{
		"requests are scored":      {[]string{"--kv-event-transport", "zmq"}, true, true},
		"none has been scored yet": {[]string{"--kv-event-transport", "zmq"}, false, false},
		"without events":           {[]string{"--kv-event-transport", "none"}, true, false},
		"another policy":           {[]string{"--kv-event-transport", "zmq", "--router-policy", "round-robin"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := config.Parse(config.EPP, append(tt.args, "--discovery-backend", "static", "--static-file", "fleet.yaml"),
				func(string) (string, bool) { return "", false }, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if tt.score {
				c.Preparer()
			}
			if n, ok := c.CacheBlocks("w"); n != 0 || ok != tt.want {
				t.Errorf("%d, %v, want 0, %v", n, ok, tt.want)
			}
		})
	}
}
