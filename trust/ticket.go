package trust

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"hash"
	"strconv"
	"strings"
	"sync"
	"time"
)

// HeaderTicket carries a ticket: "v1,<unix seconds>,<base64 of the MAC>"
// (failover.md §5, S2).
const HeaderTicket = "x-infera-route-sig"

// Skew is how far the clocks of who signs and who checks may be apart, and so for
// how long a ticket is good.
const Skew = 30 * time.Second

// Why a ticket is not good. They may be wrapped: use [errors.Is].
var (
	ErrNoTicket  = errors.New("the routing headers have no ticket")
	ErrMalformed = errors.New("the ticket is malformed")
	ErrForged    = errors.New("the ticket is not of these headers, or of another key")
	ErrSkew      = errors.New("the ticket is too old, or the clocks are too far apart")
	ErrReplayed  = errors.New("the ticket has been used before")
)

// Route is what a ticket vouches for: routing headers as they are sent, and whose
// request they are for. Absent ones are "".
type Route struct {
	RequestID string // see [RequestID]
	Worker    string
	Prefill   string
	Fallback  string // the list as sent
	Host      string // the request's authority

	Rank, PrefillRank, PrefillSkip string
}

// message appends what is signed: rid|worker|prefill|fallback|ts|host, and behind
// it rank|prefill rank|skip when one of these is set. '|' and '%' within a field
// are escaped, so that no two routes have one message. A host's case does not
// count.
func (r *Route) message(dst []byte, ts int64) []byte {
	dst = field(dst, r.RequestID)
	dst = field(append(dst, '|'), r.Worker)
	dst = field(append(dst, '|'), r.Prefill)
	dst = field(append(dst, '|'), r.Fallback)
	dst = strconv.AppendInt(append(dst, '|'), ts, 10)
	from := len(dst)
	dst = field(append(dst, '|'), r.Host)
	for i, c := range dst[from:] {
		if c >= 'A' && c <= 'Z' {
			dst[from+i] = c + 'a' - 'A'
		}
	}
	if r.Rank == "" && r.PrefillRank == "" && r.PrefillSkip == "" {
		return dst
	}
	dst = field(append(dst, '|'), r.Rank)
	dst = field(append(dst, '|'), r.PrefillRank)
	return field(append(dst, '|'), r.PrefillSkip)
}

func field(dst []byte, s string) []byte {
	for i := range len(s) {
		switch s[i] {
		case '|':
			dst = append(dst, "%7C"...)
		case '%':
			dst = append(dst, "%25"...)
		default:
			dst = append(dst, s[i])
		}
	}
	return dst
}

// macs lends the state of one key's HMAC: to make it costs more than to use it.
type macs struct {
	key  []byte
	pool sync.Pool // of *mac
}

type mac struct {
	hash hash.Hash
	msg  []byte
	sum  [sha256.Size]byte
}

// sign returns the MAC of r at ts. Give it back to put.
func (m *macs) sign(r *Route, ts int64) *mac {
	c, ok := m.pool.Get().(*mac)
	if !ok {
		c = &mac{hash: hmac.New(sha256.New, m.key)}
	}
	c.hash.Reset()
	c.msg = r.message(c.msg[:0], ts)
	_, _ = c.hash.Write(c.msg) // a hash never fails
	c.hash.Sum(c.sum[:0])
	return c
}

func (m *macs) put(c *mac) { m.pool.Put(c) }

// TicketSize is the most bytes that a ticket has.
const TicketSize = len("v1,") + 20 + len(",") + 44

// Sign appends a ticket for r, made at now, to dst.
func (k *Keys) Sign(dst []byte, now time.Time, r *Route) []byte {
	m := &k.ring(now).macs[0]
	ts := now.Unix()
	c := m.sign(r, ts)
	dst = append(strconv.AppendInt(append(dst, "v1,"...), ts, 10), ',')
	dst = base64.StdEncoding.AppendEncode(dst, c.sum[:])
	m.put(c)
	return dst
}

// verify returns the MAC that header carries, when it is good for r at now.
func (k *Keys) verify(now time.Time, header string, r *Route) (sum [sha256.Size]byte, ts int64, err error) {
	if header == "" {
		return sum, 0, ErrNoTicket
	}
	version, rest, _ := strings.Cut(header, ",")
	stamp, text, ok := strings.Cut(rest, ",")
	ts, bad := strconv.ParseInt(stamp, 10, 64)
	var room [sha256.Size + 1]byte // a text as long, without the padding, has a byte more
	n, err := base64.StdEncoding.Strict().Decode(room[:], clip(text))
	if version != "v1" || !ok || bad != nil || err != nil || n != len(sum) {
		return sum, 0, ErrMalformed
	}
	copy(sum[:], room[:])
	if !k.made(now, sum[:], r, ts) {
		return sum, ts, ErrForged
	}
	// Whose clock it is can be told only of a good signature.
	if age := now.Sub(time.Unix(ts, 0)); age >= Skew+time.Second || age < -Skew {
		return sum, ts, ErrSkew
	}
	return sum, ts, nil
}

// clip returns text, empty where it is too long to decode into a MAC.
func clip(text string) []byte {
	if len(text) != base64.StdEncoding.EncodedLen(sha256.Size) {
		return nil
	}
	return []byte(text)
}

// made reports whether one of the keys made sum of r and ts.
func (k *Keys) made(now time.Time, sum []byte, r *Route, ts int64) bool {
	ring := k.ring(now)
	for i := range ring.macs {
		m := &ring.macs[i]
		c := m.sign(r, ts)
		same := hmac.Equal(c.sum[:], sum)
		m.put(c)
		if same {
			return true
		}
	}
	return false
}

// RequestID returns the ID that a request goes by, of the values of
// x-infera-request-id and x-request-id: the first that can be one, or "". Both
// doors ask here, so that they sign and check the same.
func RequestID(infera, client string) string {
	switch {
	case ValidID(infera):
		return infera
	case ValidID(client):
		return client
	}
	return ""
}

// maxID is the longest request ID that is taken, in bytes.
const maxID = 128

// ValidID reports whether id can be a request ID: it goes into logs and headers,
// so that only letters, digits, '.', '_' and '-' make one.
func ValidID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}
