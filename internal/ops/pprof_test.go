package ops_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"pointsman/internal/ops"
)

func TestTheProfilerWantsTheTokenOrThisMachine(t *testing.T) {
	for _, tc := range []struct {
		name, token, sent, from string
		want                    int
	}{
		{"this machine", "", "", "127.0.0.1:9", 200},
		{"another machine", "", "", "10.0.0.9:9", 403},
		{"another machine without the token", "secret", "", "10.0.0.9:9", 401},
		{"this machine without the token", "secret", "", "127.0.0.1:9", 401},
		{"another machine with a wrong token", "secret", "Bearer wrong", "10.0.0.9:9", 401},
		{"another machine with the token", "secret", "Bearer secret", "10.0.0.9:9", 200},
	} {
		r := httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)
		r.RemoteAddr = tc.from
		r.Header.Set("Authorization", tc.sent)
		w := httptest.NewRecorder()
		ops.Profiler(tc.token).ServeHTTP(w, r)
		if w.Code != tc.want {
			t.Errorf("%s: status %d, want %d", tc.name, w.Code, tc.want)
		}
	}
}
