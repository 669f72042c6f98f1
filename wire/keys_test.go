package wire

import "testing"

// Vectors computed with Infera's own code (infera/common/nats_request.py).
func TestTokenIsInferas(t *testing.T) {
	for id, want := range map[string]string{
		"10.0.0.1:30000":        "MTAuMC4wLjE6MzAwMDA",
		"10.0.0.1:8080":         "MTAuMC4wLjE6ODA4MA",
		"host.example.com:8000": "aG9zdC5leGFtcGxlLmNvbTo4MDAw",
		"[::1]:8080":            "Wzo6MV06ODA4MA",
		"0.0.0.0:30000":         "MC4wLjAuMDozMDAwMA",
		"127.0.0.1:31001":       "MTI3LjAuMC4xOjMxMDAx",
	} {
		if got := Token(id); got != want {
			t.Errorf("Token(%q) = %q, want %q", id, got, want)
		}
	}
}

func TestWorkerKeys(t *testing.T) {
	for _, c := range []struct{ name, prefix, key, id string }{
		{"the default prefix", "", "/infera/workers/10.0.0.1:1", "10.0.0.1:1"},
		{"a prefix without its slash", "/fleet/a", "/fleet/a/w", "w"},
		{"a prefix with its slash", "/fleet/a/", "/fleet/a/w", "w"},
		{"an ID with a slash", "/fleet", "/fleet/rack1/w", "rack1/w"},
	} {
		if got := WorkerKey(c.prefix, c.id); got != c.key {
			t.Errorf("%s: key %q, want %q", c.name, got, c.key)
		}
		if id, ok := WorkerID(c.prefix, c.key); !ok || id != c.id {
			t.Errorf("%s: ID %q, %v, want %q", c.name, id, ok, c.id)
		}
	}
	for _, key := range []string{"", "/infera/workers/", "/infera/workers", "/infera/workers0/w", "/other/w"} {
		if id, ok := WorkerID("", key); ok {
			t.Errorf("key %q registers %q, want none", key, id)
		}
	}
}
