package etcd

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestEndpoints(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"etcd", []string{"http://etcd:2379"}},
		{"10.0.0.1:2380", []string{"http://10.0.0.1:2380"}},
		{"http://etcd", []string{"http://etcd:2379"}},
		{"http://etcd:2379/", []string{"http://etcd:2379"}},
		{"https://etcd/", []string{"https://etcd:2379"}},
		{"a, b:1 ,http://c,", []string{"http://a:2379", "http://b:1", "http://c:2379"}},
		{"::1", []string{"http://[::1]:2379"}},
		{"[::1]", []string{"http://[::1]:2379"}},
		{"[::1]:4001", []string{"http://[::1]:4001"}},
		{"https://[fd00::7]:4001", []string{"https://[fd00::7]:4001"}},
	} {
		got, err := Config{Endpoints: c.in}.endpoints()
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, %v, want %q", c.in, got, err, c.want)
		}
	}
	if got, err := (Config{Endpoints: "etcd", CA: "ca.pem"}).endpoints(); err != nil || got[0] != "https://etcd:2379" {
		t.Errorf("with a CA: got %q, %v", got, err)
	}
}

func TestConfigFaults(t *testing.T) {
	for _, c := range []struct {
		name, want string
		cfg        Config
	}{
		{"no endpoint", "no endpoint", Config{}},
		{"only commas", "no endpoint", Config{Endpoints: " , "}},
		{"another scheme", "want http", Config{Endpoints: "unix://x"}},
		{"a path", "nothing behind it", Config{Endpoints: "http://etcd:2379/v3"}},
		{"no host", "want host:port", Config{Endpoints: ":2379"}},
		{"too many colons", "want host:port", Config{Endpoints: "a:b:c"}},
		{"http and https", "do not mix", Config{Endpoints: "http://a,https://b"}},
		{"certificates over http", "want https", Config{Endpoints: "http://a", CA: "x"}},
		{"half a certificate", "both", Config{Endpoints: "a", Cert: "x"}},
		{"a password alone", "needs a user", Config{Endpoints: "a", Password: "x"}},
		{"time below 0", "backoff -1s", Config{Endpoints: "a", Backoff: -time.Second}},
		{"silence before a probe", "must be longer", Config{Endpoints: "a", Silence: time.Second}},
	} {
		if err := c.cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want it to say %q", c.name, err, c.want)
		}
		if _, err := New(c.cfg, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: New took it", c.name)
		}
	}
	cfg := DefaultConfig()
	cfg.Endpoints = "etcd"
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}

func TestFilesThatCannotBeReadAreRefusedAtOnce(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{
		{Endpoints: "a", CA: junk + ".gone"},
		{Endpoints: "a", CA: junk},
		{Endpoints: "a", Cert: junk, Key: junk},
	} {
		if _, err := New(cfg, nil); err == nil || !strings.Contains(err.Error(), "junk.pem") && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%+v: error %v", cfg, err)
		}
	}
}
