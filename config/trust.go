package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"pointsman/forward"
	"pointsman/trust"
)

// Trust is whom the program believes, beyond what its door's room says.
type Trust struct {
	KeyFile  string // keys of route tickets; "" for none
	ClientCA string // CA file of those who connect here; "" asks for no certificate
	MinTLS   string // 1.2, 1.3

	WorkerCertPath string // directory with the certificate shown to workers; "" shows none
	WorkerCA       string // CA file of https workers; "" for the system's

	ForwarderCA   string // CA file of forwarders whose port speaks TLS; "" asks them in plain HTTP
	ForwarderName string // what their certificates are for; "" for each one's host

	SaltMode    trust.SaltMode
	SaltKeyFile string // key that cache salts are derived with

	AllowAddresses []netip.Prefix // networks that workers may be in though they look wrong
	Pprof          string         // host:port of the profiler; "" for none
}

func (c *Config) trustRows() []setting {
	t := &c.Trust
	return []setting{
		{name: "direct-trust", group: "Trust", in: Both, usage: "how a forwarder in direct mode knows that routing headers are the endpoint picker's: by a ticket that the EPP signs (hmac), by the certificate of who connects (mtls), or not at all (none), as Infera's. The EPP must be told hmac, too", value: oneOf((*string)(&c.Forward.Trust), "none", "hmac", "mtls")},
		{name: "direct-untrusted", group: "Trust", in: Forwarder, usage: "what becomes of routing headers that are not believed: ignored, and the policy picks (pick), or 403 (reject)", value: oneOf((*string)(&c.Forward.Untrusted), "pick", "reject")},
		{name: "direct-key-file", group: "Trust", in: Both, usage: "file with the keys of tickets, one on a line, 16 bytes or more: the first signs, all check; read again when it changes", value: stringValue(&t.KeyFile)},
		{name: "trusted-peers", group: "Trust", in: Forwarder, usage: "subject alternative names (DNS, URI, IP) of gateways, with commas; '*' at the end for any ending; for --direct-trust mtls", value: listValue(&c.Forward.TrustedPeers)},
		{name: "client-ca-file", group: "Trust", in: Both, usage: "CA of those who connect: the EPP then refuses gateways without a certificate of it, the forwarder verifies those that are shown", value: stringValue(&t.ClientCA)},
		{name: "tls-min-version", group: "Trust", in: Both, usage: "oldest TLS spoken to who connects. Envoy speaks no more than 1.2 to upstreams unless told so (tls_maximum_protocol_version), which is why the EPP's default is 1.2; the forwarder's is 1.3", value: oneOf(&t.MinTLS, "1.2", "1.3")},
		{name: "worker-cert-path", group: "Trust", in: Forwarder, usage: "directory with tls.crt and tls.key, shown to workers with an https URL; read again when they change", value: stringValue(&t.WorkerCertPath)},
		{name: "worker-ca-file", group: "Trust", in: Forwarder, usage: "CA of workers with an https URL; empty for the system's", value: stringValue(&t.WorkerCA)},
		{name: "forwarder-ca-file", group: "Trust", in: Both, usage: "CA of forwarders whose port speaks TLS (their --cert-path): load reports over HTTP are asked for by https then; empty for plain http", value: stringValue(&t.ForwarderCA)},
		{name: "forwarder-tls-name", group: "Trust", in: Both, usage: "the DNS name that these certificates are for; empty for the host or address of each", value: stringValue(&t.ForwarderName)},
		{name: "allow-address-cidrs", group: "Trust", in: Both, usage: "networks, with commas, that workers may be in although no worker should be: link-local, metadata services, multicast, unspecified; loopback, unless discovery is static or itself on this machine", value: prefixesValue(&t.AllowAddresses)},
		{name: "cache-salt-mode", group: "Trust", in: Both, usage: "cache_salt of requests: the client's own (pass), one derived of the tenant and the client's own, in its place (tenant), or 400 without one (require). Same on EPP and forwarders", value: oneOf((*string)(&t.SaltMode), "pass", "tenant", "require")},
		{name: "cache-salt-key-file", group: "Trust", in: Both, usage: "file with the key that salts are derived with, for --cache-salt-mode tenant; the first line counts", value: stringValue(&t.SaltKeyFile)},
		{name: "strip-transfer-fields", group: "Trust", in: Forwarder, usage: "take kv_transfer_params, bootstrap_* and other fields by which routers tell engines of each other out of clients' bodies; false behind another router that sets them", value: boolValue(&c.Forward.StripTransfer)},
		{name: "pprof", group: "Trust", in: Both, usage: "host:port of Go's profiler, never that of metrics; empty for none. Other than loopback only with --admin-token", value: stringValue(&t.Pprof)},
	}
}

// listValue is a list of words with commas between them.
func listValue(p *[]string) value {
	return value{"list", func(s string) error {
		var list []string
		for word := range strings.SplitSeq(s, ",") {
			if word = strings.TrimSpace(word); word != "" {
				list = append(list, word)
			}
		}
		*p = list
		return nil
	}, func() string { return strings.Join(*p, ",") }}
}

// prefixesValue is a list of networks; an address alone is a network of one.
func prefixesValue(p *[]netip.Prefix) value {
	return value{"CIDRs", func(s string) error {
		var words []string
		_ = listValue(&words).set(s) // takes anything
		list := make([]netip.Prefix, 0, len(words))
		for _, word := range words {
			net, err := netip.ParsePrefix(word)
			if addr, one := netip.ParseAddr(word); one == nil {
				net, err = netip.PrefixFrom(addr, addr.BitLen()), nil
			}
			if err != nil {
				return fmt.Errorf("%q is not a network such as 127.0.0.0/8", word)
			}
			list = append(list, net.Masked())
		}
		*p = list
		return nil
	}, func() string {
		words := make([]string, len(*p))
		for i, net := range *p {
			words[i] = net.String()
		}
		return strings.Join(words, ",")
	}}
}

// Addresses says where workers may be. Loopback is admitted where the fleet is a
// file, or where etcd is on this machine: then all of it is.
func (c *Config) Addresses() *trust.Addresses {
	return &trust.Addresses{Allow: c.Trust.AllowAddresses, Loopback: c.Discovery == "static" || c.Discovery == "etcd" && here(c.Etcd.Endpoint)}
}

// here reports whether all of the endpoints are this machine's.
func here(endpoints string) bool {
	for end := range strings.SplitSeq(endpoints, ",") {
		_, rest, url := strings.Cut(strings.TrimSpace(end), "://")
		if !url {
			rest = strings.TrimSpace(end)
		}
		host, _, _ := strings.Cut(rest, "/")
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !loopback(host) {
			return false
		}
	}
	return true
}

// loopback reports whether host is this machine's own name or address.
func loopback(host string) bool {
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// TLSVersion is the oldest TLS that is spoken to who connects.
func (c *Config) TLSVersion() uint16 {
	if c.Trust.MinTLS == "1.2" {
		return tls.VersionTLS12
	}
	return tls.VersionTLS13
}

// ListenCerts are the files of the client port, or of the EPP's; see CertPath.
func (c *Config) ListenCerts() trust.Files {
	f := certsIn(c.CertPath)
	f.CA = c.Trust.ClientCA
	return f
}

// WorkerCerts are the files for workers with an https URL.
func (c *Config) WorkerCerts() trust.Files {
	f := certsIn(c.Trust.WorkerCertPath)
	f.CA = c.Trust.WorkerCA
	return f
}

func certsIn(dir string) trust.Files {
	if dir == "" {
		return trust.Files{}
	}
	return trust.Files{Cert: dir + "/tls.crt", Key: dir + "/tls.key"}
}

// Exposed says that routing headers are believed of anyone who can reach the port.
func (c *Config) Exposed() bool {
	return c.Program&Forwarder != 0 && c.Forward.Mode == forward.Direct && c.Forward.Trust == forward.TrustNone && !loopback(c.Host)
}

// validateTrust reports what does not go together.
func (c *Config) validateTrust() []error {
	var errs []error
	t := &c.Trust
	if c.Forward.Trust == forward.TrustHMAC && t.KeyFile == "" {
		errs = append(errs, errors.New("--direct-trust hmac needs --direct-key-file"))
	}
	if c.Program&Forwarder != 0 {
		if c.Forward.Trust == forward.TrustMTLS && (c.CertPath == "" || t.ClientCA == "" || len(c.Forward.TrustedPeers) == 0) {
			errs = append(errs, errors.New("--direct-trust mtls needs --cert-path, --client-ca-file and --trusted-peers"))
		}
		if t.ClientCA != "" && c.CertPath == "" {
			errs = append(errs, errors.New("--client-ca-file without --cert-path: certificates are shown over TLS only"))
		}
	}
	if c.Program&EPP != 0 && c.CertPath != "" && !c.ExtProc.Secure {
		errs = append(errs, fmt.Errorf("--cert-path %s: given, but secure serving is off", c.CertPath))
	}
	if c.Program&EPP != 0 && t.ClientCA != "" && c.CertPath == "" {
		errs = append(errs, errors.New("--client-ca-file needs --cert-path: who must prove who they are should see the same of us"))
	}
	if t.ForwarderName != "" && t.ForwarderCA == "" {
		errs = append(errs, errors.New("--forwarder-tls-name without --forwarder-ca-file: forwarders are asked in plain http then"))
	}
	if t.SaltMode == trust.SaltTenant && (t.SaltKeyFile == "" || c.Forward.Admission.Tenant == "") {
		errs = append(errs, errors.New("--cache-salt-mode tenant needs --cache-salt-key-file and --tenant-header, a header that is verified before it comes here"))
	}
	return append(errs, c.validatePprof()...)
}

func (c *Config) validatePprof() []error {
	if c.Trust.Pprof == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.Trust.Pprof)
	n, bad := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil, bad != nil, n == 0:
		return []error{fmt.Errorf("--pprof %q: want host:port, for instance 127.0.0.1:6060", c.Trust.Pprof)}
	case !loopback(host) && c.AdminToken == "":
		return []error{fmt.Errorf("--pprof %s is open to other machines: set --admin-token, or listen on 127.0.0.1", c.Trust.Pprof)}
	}
	return nil
}
