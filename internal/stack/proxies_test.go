package stack

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// testProxy is a proxy in front of a server that sends back what it gets.
func testProxy(t *testing.T) *Proxy {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := &Proxy{proxy: toxiproxy.NewProxy(server, "test", "127.0.0.1:0", lis.Addr().String())}
	if err := p.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Refuse)
	return p
}

// echo says what comes of four bytes through p: nil when they come back.
func echo(t *testing.T, p *Proxy) error {
	t.Helper()
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", p.proxy.Listen)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err = c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err
}

func TestAProxyBreaksAndHeals(t *testing.T) {
	p := testProxy(t)
	faults := []struct {
		name  string
		begin func() error
		like  func(error) bool
	}{
		{"refuse", func() error { p.Refuse(); return nil }, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }},
		{"silence", p.Silence, func(err error) bool { var late net.Error; return errors.As(err, &late) && late.Timeout() }},
		{"reset", p.Reset, func(err error) bool { return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) }},
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			if err := echo(t, p); err != nil {
				t.Fatalf("before: %v", err)
			}
			if err := f.begin(); err != nil {
				t.Fatal(err)
			}
			if err := echo(t, p); !f.like(err) {
				t.Errorf("while broken: %v", err)
			}
			if err := p.Heal(); err != nil {
				t.Fatal(err)
			}
			if err := echo(t, p); err != nil {
				t.Errorf("healed: %v", err)
			}
		})
	}
}
