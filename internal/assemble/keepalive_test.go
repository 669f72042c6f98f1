package assemble_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"

	"pointsman/config"
	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/assemble"
)

// --backend-keepalive, from the command line to the socket's option.
func TestBackendKeepaliveReachesTheWorkersSocket(t *testing.T) {
	for flag, want := range map[string]struct{ on, idle int }{"60": {1, 60}, "33": {1, 33}, "0": {0, 0}} {
		worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
		cfg, err := config.Parse(config.Forwarder, []string{
			"--discovery-backend", "static", "--static-file", "/dev/null", "--kv-event-transport", "none", "--request-transport", "http", "--backend-keepalive", flag,
		}, func(string) (string, bool) { return "", false }, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		c, err := assemble.New(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		transports, _, err := c.Transports()
		if err != nil {
			t.Fatal(err)
		}
		at, ok := worker.Listener.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatal("no TCP")
		}
		resp, err := transports["http"].Do(t.Context(), &fleet.Worker{ID: "w", URL: worker.URL, Host: at.IP.String(), Port: at.Port}, &forward.Request{Method: "GET", Target: "/", Header: http.Header{}})
		if err != nil {
			t.Fatal(err)
		}
		on, idle, found := keepAlive(at)
		if !found || on != want.on || want.on == 1 && idle != want.idle {
			t.Errorf("--backend-keepalive %s: socket found %v, SO_KEEPALIVE %d, TCP_KEEPIDLE %d", flag, found, on, idle)
		}
		_ = resp.Body.Close()
		worker.Close()
	}
}

// keepAlive reads the options of this process's socket that is connected to at.
func keepAlive(at *net.TCPAddr) (on, idle int, found bool) {
	for fd := 3; fd < 1024; fd++ {
		peer, err := syscall.Getpeername(fd)
		if err != nil {
			continue
		}
		if in4, ok := peer.(*syscall.SockaddrInet4); !ok || in4.Port != at.Port {
			continue
		}
		on, _ = syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		idle, _ = syscall.GetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
		return on, idle, true
	}
	return 0, 0, false
}
