package broker_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"pointsman/internal/broker"
	"pointsman/internal/testfleet"
)

func TestFaultsAreAllNamedWithoutSecrets(t *testing.T) {
	for name, c := range map[string]broker.Config{"zero": {}, "default": broker.DefaultConfig()} {
		if err := c.Validate(); err != nil {
			t.Errorf("the %s configuration: %v", name, err)
		}
	}
	tests := []struct {
		config broker.Config
		want   string
	}{
		{broker.Config{Server: " , "}, "names none"},
		{broker.Config{Server: "http://user:secret@h:1"}, "want nats, tls, ws or wss"},
		{broker.Config{Server: "nats://:secret@"}, "host and port"},
		{broker.Config{Server: "nats://u:secret@h:port"}, "not a URL"},
		{broker.Config{Cert: "c"}, "both the certificate and its key"},
		{broker.Config{Credentials: "a", NkeySeed: "b"}, "not both"},
		{broker.Config{InboxPrefix: "a.*"}, "inbox prefix"},
		{broker.Config{InboxPrefix: "a."}, "inbox prefix"},
	}
	var all broker.Config
	for _, tt := range tests {
		err := tt.config.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want it to say %q", tt.config, err, tt.want)
			continue
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is in %v", err)
		}
	}
	all = broker.Config{Server: "ftp://h:1,nats://", Key: "k", Credentials: "a", NkeySeed: "b", InboxPrefix: ">"}
	if n := len(strings.Split(all.Validate().Error(), "\n")); n != 5 {
		t.Errorf("%d faults of 5: %v", n, all.Validate())
	}
}

func TestLogsShowNoUser(t *testing.T) {
	c := broker.Config{Server: "user:secret@host:1, tls://token@b:2"}
	if got := c.Redacted(); got != "nats://host:1,tls://b:2" {
		t.Errorf("redacted: %s", got)
	}
}

func TestADialEndsWithItsContext(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = broker.Config{Server: silent.Addr().String()}.Dial(ctx, "a test", time.Minute)
	if !errors.Is(err, context.Canceled) && !strings.Contains(err.Error(), "cancel") && !strings.Contains(err.Error(), "no servers") {
		t.Errorf("error %v", err)
	}
}

func TestCredentialsOpenTheBroker(t *testing.T) {
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(file, seed, 0o600); err != nil {
		t.Fatal(err)
	}
	a := testfleet.NewAuthority(t)
	cert, key, ca := a.Issue("both", time.Now().Add(time.Hour))
	with := func(userinfo string) func(url string, c *broker.Config) {
		return func(url string, c *broker.Config) {
			c.Server = strings.Replace(url, "nats://", "nats://"+userinfo+"@", 1)
		}
	}
	for _, tc := range []struct {
		name   string
		broker func(*server.Options)
		good   func(url string, c *broker.Config)
	}{
		{"user and password in the URL", func(o *server.Options) { o.Username, o.Password = "u", "p" }, with("u:p")},
		{"token in the URL", func(o *server.Options) { o.Authorization = "tok" }, with("tok")},
		{"token", func(o *server.Options) { o.Authorization = "tok" }, func(_ string, c *broker.Config) { c.Token = "tok" }},
		{"nkey", func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} }, func(_ string, c *broker.Config) { c.NkeySeed = file }},
		{"client certificate", func(o *server.Options) {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			pool := x509.NewCertPool()
			pem, err := os.ReadFile(ca)
			if err != nil || !pool.AppendCertsFromPEM(pem) {
				t.Fatal(err)
			}
			o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
			o.TLS, o.TLSTimeout = true, 5
		}, func(_ string, c *broker.Config) {
			c.CA, c.Cert, c.Key = ca, cert, key
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := testfleet.StartNATS(t, tc.broker)
			c := broker.Config{Server: b.URL}
			if nc, err := c.Dial(t.Context(), "nobody", time.Second); err == nil {
				nc.Close()
				t.Error("the broker takes us without credentials")
			}
			tc.good(b.URL, &c)
			nc, err := c.Dial(t.Context(), "a test", 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if err := nc.FlushTimeout(5 * time.Second); err != nil {
				t.Error(err)
			}
			if nc.Opts.Name != "a test" || nc.Opts.AllowReconnect {
				t.Errorf("connected as %q, mends itself: %t", nc.Opts.Name, nc.Opts.AllowReconnect)
			}
		})
	}
}
