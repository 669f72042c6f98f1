package trust_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/trust"
)

func TestAddressesAtWhichNoWorkerIs(t *testing.T) {
	for _, tc := range []struct {
		host     string
		loopback bool
		allow    string
		ok       bool
	}{
		{host: "10.0.0.5", ok: true},
		{host: "192.168.1.5", ok: true},
		{host: "100.64.0.9", ok: true},
		{host: "203.0.113.7", ok: true},
		{host: "fd00::1", ok: true},
		{host: "2001:db8::1", ok: true},
		{host: "worker-1.pool", ok: true}, // the dialer sees what it is
		{host: "169.254.169.254"},
		{host: "::ffff:169.254.169.254"},
		{host: "fe80::1"},
		{host: "fe80::1%eth0"},
		{host: "fd00:ec2::254"},
		{host: "100.100.100.200"},
		{host: "224.0.0.1"},
		{host: "ff02::1"},
		{host: "0.0.0.0"},
		{host: "::"},
		{host: "127.0.0.1"},
		{host: "::1"},
		{host: "::ffff:127.0.0.1"},
		{host: "127.0.0.1", loopback: true, ok: true},
		{host: "127.0.0.1", allow: "127.0.0.0/8", ok: true},
		{host: "169.254.10.1", allow: "169.254.10.0/24", ok: true},
		{host: "169.254.169.254", allow: "169.254.10.0/24"},
	} {
		a := trust.Addresses{Loopback: tc.loopback}
		if tc.allow != "" {
			a.Allow = []netip.Prefix{netip.MustParsePrefix(tc.allow)}
		}
		err := a.Worker(&fleet.Worker{ID: "w", Host: tc.host, Port: 80})
		if (err == nil) != tc.ok || err != nil && !errors.Is(err, trust.ErrAddress) {
			t.Errorf("%+v: %v", tc, err)
		}
		if _, name := netip.ParseAddr(tc.host); name == nil {
			if err := a.Dial("tcp", net.JoinHostPort(tc.host, "80"), nil); (err == nil) != tc.ok {
				t.Errorf("dial %+v: %v", tc, err)
			}
		}
	}
}

func TestEveryAddressOfARecordCounts(t *testing.T) {
	for _, w := range []fleet.Worker{
		{Host: "10.0.0.1", Endpoint: "169.254.169.254:8000"},
		{Host: "10.0.0.1", KVEvents: "tcp://169.254.169.254:5557"},
		{Host: "10.0.0.1", KVReplay: "tcp://[fe80::1]:5557"},
	} {
		if err := new(trust.Addresses).Worker(&w); !errors.Is(err, trust.ErrAddress) {
			t.Errorf("%+v: %v", w, err)
		}
	}
}

func TestANameThatResolvesToWhereNoWorkerIsIsNotDialed(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	_, port, _ := net.SplitHostPort(lis.Addr().String())
	for _, a := range []trust.Addresses{{}, {Loopback: true}} {
		d := net.Dialer{Control: a.Dial, Timeout: time.Second}
		c, err := d.Dial("tcp", "localhost:"+port)
		if (err == nil) != a.Loopback || err != nil && !errors.Is(err, trust.ErrAddress) {
			t.Errorf("%+v: %v", a, err)
		}
		if c != nil {
			c.Close()
		}
	}
}
