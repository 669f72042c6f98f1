package health_test

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/health"
)

// BenchmarkProbe is the cost of one http probe, the server's part included: the
// metric cpu-%-of-200-workers is what 200 workers at 5 s take of one core.
func BenchmarkProbe(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer srv.Close()
	cfg := health.DefaultConfig()
	p, err := health.New(cfg, health.Deps{Store: new(fleet.Store), Log: slog.New(slog.DiscardHandler), Dial: (&net.Dialer{KeepAlive: -1}).DialContext})
	if err != nil {
		b.Fatal(err)
	}
	w := at(srv.Listener.Addr())
	before := cpu(b)
	b.ReportAllocs()
	for b.Loop() {
		if r := health.ProbeOnce(b.Context(), p, w); r != "ok" {
			b.Fatal(r)
		}
	}
	each := (cpu(b) - before) / time.Duration(b.N)
	b.ReportMetric(float64(each.Nanoseconds()), "cpu-ns/op")
	b.ReportMetric(100*each.Seconds()*200/5, "cpu-%-of-200-workers")
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
