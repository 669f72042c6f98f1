package trust

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"
)

// Salt returns the cache salt under which the prompts of a tenant's requests are
// kept: HMAC-SHA256 of the tenant, its length before it, and of the salt that the
// client asks for ("" for none), with the first key. Who has no key cannot make
// another tenant's salt, and one that is asked for only divides the tenant's own
// space (failover.md §5, S16). Another key is another space: caches are cold then.
func (k *Keys) Salt(now time.Time, tenant, client string) string {
	mac := hmac.New(sha256.New, k.ring(now).macs[0].key)
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(tenant)))
	_, _ = mac.Write(append(append([]byte("cache-salt-v1\x00"), size[:]...), tenant...)) // a hash never fails
	_, _ = mac.Write([]byte(client))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// SaltMode says what becomes of the cache_salt of requests (failover.md §5, S16).
type SaltMode string

// The modes.
const (
	SaltPass    SaltMode = "pass"    // the client's own, which is no boundary: it may name another's
	SaltTenant  SaltMode = "tenant"  // one derived of the tenant and the client's, in its place
	SaltRequire SaltMode = "require" // the client's own, and 400 without one
)

// Salts applies a mode. The zero value passes. It is safe for concurrent use.
type Salts struct {
	Mode SaltMode
	Keys *Keys // for SaltTenant
}

// Derives reports whether requests get another salt than the client's.
func (s *Salts) Derives() bool { return s != nil && s.Mode == SaltTenant }

// Requires reports whether requests must have a salt.
func (s *Salts) Requires() bool { return s != nil && s.Mode == SaltRequire }
