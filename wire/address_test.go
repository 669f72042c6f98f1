package wire

import (
	"testing"

	"pointsman/fleet"
)

func TestSetURL(t *testing.T) {
	for _, c := range []struct {
		in, url, host string
		port          int // 0: refused
	}{
		{"http://10.0.0.1:30000", "http://10.0.0.1:30000", "10.0.0.1", 30000},
		{"http://gpu-7.lab.internal:1", "http://gpu-7.lab.internal:1", "gpu-7.lab.internal", 1},
		{"http://h:65535///", "http://h:65535", "h", 65535},
		{"https://h:8443/engine/", "https://h:8443/engine", "h", 8443},
		{"http://h", "http://h", "h", 80},
		{"https://h", "https://h", "h", 443},
		{"http://[fd00::1]:5", "http://[fd00::1]:5", "fd00::1", 5},
		{"http://[fe80::1%25eth0]:5", "http://[fe80::1%25eth0]:5", "fe80::1%eth0", 5},
		{"h:1", "", "", 0},
		{"//h:1", "", "", 0},
		{"http:h:1", "", "", 0},
		{"http://", "", "", 0},
		{"http://h:", "http://h:", "h", 80},
		{"http://h:-1", "", "", 0},
		{"http://h:+1", "", "", 0},
		{"http://h:65536", "", "", 0},
		{"http://h:1#top", "", "", 0},
		{"http://h:1?", "http://h:1?", "h", 1},
		{"http://a b:1", "", "", 0},
		{"http://[fd00::1", "", "", 0},
		{"HTTP://h:1", "HTTP://h:1", "h", 1},
	} {
		var w fleet.Worker
		err := SetURL(&w, c.in)
		if (err == nil) != (c.port != 0) {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if err != nil {
			if w.URL != "" || w.Host != "" || w.Port != 0 {
				t.Errorf("%q: refused, and set to %+v", c.in, w)
			}
			continue
		}
		if w.URL != c.url || w.Host != c.host || w.Port != c.port {
			t.Errorf("%q: URL %q, host %q, port %d", c.in, w.URL, w.Host, w.Port)
		}
	}
}

func TestEventsEndpoint(t *testing.T) {
	for _, c := range []struct {
		in    string
		ranks int
		want  string // "" is refused
	}{
		{"tcp://10.0.0.1:5557", 1, "tcp://10.0.0.1:5557"},
		{"tcp://host.lab:5557", 8, "tcp://host.lab:5557"},
		{"tcp://[fd00::9]:5557", 1, "tcp://[fd00::9]:5557"},
		{"tcp://*:5557", 1, "tcp://[fd00::1]:5557"},
		{"tcp://0.0.0.0:5557", 1, "tcp://[fd00::1]:5557"},
		{"tcp://[::]:5557", 1, "tcp://[fd00::1]:5557"},
		{"tcp://h:65535", 1, "tcp://h:65535"},
		{"tcp://h:65535", 2, ""},
		{"tcp://h:0", 1, ""},
		{"tcp://h:http", 1, ""},
		{"tcp://h", 1, ""},
		{"tcp://fd00::9:5557", 1, ""},
		{"tcp://:5557", 1, ""},
		{"tcp://a b:5557", 1, ""},
		{"udp://h:5557", 1, ""},
		{"h:5557", 1, ""},
		{"", 1, ""},
	} {
		got, err := EventsEndpoint(c.in, "fd00::1", c.ranks)
		if (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%q for %d ranks: %q, %v, want %q", c.in, c.ranks, got, err, c.want)
		}
	}
}

func TestParseRole(t *testing.T) {
	for in, want := range map[string]fleet.Role{"": fleet.Mixed, "mixed": fleet.Mixed, "prefill": fleet.Prefill, "decode": fleet.Decode} {
		if got, err := ParseRole(in); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"Mixed", "prefill ", "both", "encode"} {
		if _, err := ParseRole(in); err == nil {
			t.Errorf("%q is a role", in)
		}
	}
}
