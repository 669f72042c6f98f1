package etcd

import (
	"log/slog"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"pointsman/internal/testfleet"
)

func TestTLSWithAClientCertificate(t *testing.T) {
	a := testfleet.NewAuthority(t)
	serverCert, serverKey, ca := a.Issue("server", time.Now().Add(time.Hour))
	clientCert, clientKey, _ := a.Issue("client", time.Now().Add(time.Hour))
	e := testfleet.StartEtcd(t, func(cfg *embed.Config) {
		secure := []url.URL{{Scheme: "https", Host: cfg.ListenClientUrls[0].Host}}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = secure, secure
		cfg.ClientTLSInfo = transport.TLSInfo{
			CertFile: serverCert, KeyFile: serverKey,
			TrustedCAFile: ca, ClientCertAuth: true,
		}
	})
	cfg := impatient(e.Endpoint)
	cfg.Timeout = time.Second
	for name, edit := range map[string]func(*Config){
		"the system's authorities":     func(*Config) {},
		"no certificate of the client": func(c *Config) { c.CA = ca },
	} {
		refused := cfg
		edit(&refused)
		f := follow(t, refused)
		f.Until(name+" to be refused", func() bool { return f.Log.Count("out of step") > 0 })
		if f.Store.Synced() {
			t.Errorf("%s: synced", name)
		}
	}

	cfg.CA, cfg.Cert, cfg.Key = ca, clientCert, clientKey
	src, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	client, err := (&follower{Source: src}).connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	e.Put(t, client, "/infera/workers/a:1", record("a:1"))
	f := follow(t, cfg)
	f.Want("the fleet", "a:1")
}
