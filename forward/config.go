package forward

import (
	"errors"
	"fmt"
	"time"

	"pointsman/admission"
)

// Mode says who picks the worker (Infera: --router-mode).
type Mode string

// The two modes.
const (
	// Auto picks in this process, by the policy.
	Auto Mode = "auto"
	// Direct obeys the headers x-worker-instance-id and x-prefill-instance-id
	// of an Endpoint Picker, and picks by the policy when they are absent.
	Direct Mode = "direct"
)

// RetrySafety says up to which point a failed attempt may be repeated.
type RetrySafety string

// The two degrees. Neither repeats anything after a byte went to the client.
const (
	// BeforeFirstToken also repeats requests that a worker may have begun to
	// run: connections that died before an answer, and 5xx. A generation may
	// then run twice, but is delivered once.
	BeforeFirstToken RetrySafety = "before-first-token"
	// PreDispatch repeats only what cannot have run: failed dials, incomplete
	// writes, and refusals (429, and 503 with Retry-After).
	PreDispatch RetrySafety = "pre-dispatch"
)

// PrefillFailure says what becomes of a request whose prefill leg failed.
type PrefillFailure string

// The policies; none of them is silent (llm-d/llm-d-router 1206).
const (
	PrefillRetry PrefillFailure = "retry"
	PrefillLocal PrefillFailure = "local"
	PrefillError PrefillFailure = "error"
)

// Trust says how routing headers are known to be the endpoint picker's (failover.md
// §5, S2).
type Trust string

// The ways: not at all, as Infera's; by a ticket; by the connection's certificate.
const (
	TrustNone Trust = "none"
	TrustHMAC Trust = "hmac"
	TrustMTLS Trust = "mtls"
)

// Untrusted says what becomes of routing headers that are not believed.
type Untrusted string

// They are ignored, and the policy picks; or the request is refused with 403.
const (
	UntrustedPick   Untrusted = "pick"
	UntrustedReject Untrusted = "reject"
)

// DirectFallback says what becomes of a request whose named worker is not known.
type DirectFallback string

// The ways: 503 stale_worker, or a pick by the policy (failover 2B).
const (
	DirectRefuse DirectFallback = "refuse"
	DirectPolicy DirectFallback = "policy"
)

// Config is the forwarder's tuning. The zero value is not valid: start from
// [DefaultConfig].
type Config struct {
	Mode           Mode // who picks; default auto
	DirectFailover bool // in direct mode, repeat failed attempts on alternates as in auto; default true
	// Trust says how routing headers are known to be the endpoint picker's, and
	// Untrusted what becomes of others. Defaults none and pick.
	Trust     Trust
	Untrusted Untrusted
	// TrustedPeers are the subject alternative names of gateways, for TrustMTLS; see
	// package trust.
	TrustedPeers []string
	// StripTransfer takes the fields by which routers tell engines of each other out
	// of clients' bodies. Default true.
	StripTransfer bool
	// DirectFallback says what becomes of a request that names a worker which is
	// not known here. Default refuse.
	DirectFallback DirectFallback
	// OwnWorker is the ID of the worker that this forwarder stands beside; "" (the
	// default) tells it by the address at which the gateway came.
	OwnWorker   string
	MaxRetries  int         // further attempts after the first; 0 fails at once; default 1 (--request-max-retries)
	RetrySafety RetrySafety // default before-first-token

	// ConnectRetrySameEP is how many times a worker that cannot be dialed is dialed
	// again, if it was picked for what it holds: for cached blocks, a session, or as
	// a leg of a pair. 0 to 3, default 1 (LoxiLB: LLB_PD_CONNECT_RETRY_SAME_EP).
	ConnectRetrySameEP int
	// MaxAttempts bounds the dials and dispatches of one leg of a request, of
	// whatever kind. 1 to 8, default 3.
	MaxAttempts int
	// RetryBudgetShare and RetryBudgetFloor bound the repetitions of all requests
	// together: in any 10 s, a share of the requests, plus so many per second.
	// Defaults 0.2 and 3; both 0 repeat nothing.
	RetryBudgetShare, RetryBudgetFloor float64
	// PrefillFailure is what a prefill leg's failure comes to: another pair once,
	// then the error (retry, the default); the decode worker computes the prompt
	// itself (local, counted); or the error at once (error).
	PrefillFailure PrefillFailure

	// EngineRequestID tells vLLM engines, in X-Request-Id, the attempt's ID as their
	// own name for the request. Default true.
	EngineRequestID bool

	// NameWorker puts the ID of the worker that answered into the response header
	// x-worker-instance-id. Default true; turn it off where clients must not
	// learn workers' addresses.
	NameWorker bool

	// InjectRetention tells SGLang and vLLM workers, in fields of Infera's own in
	// the body, for how long the prompt's cache is to be kept. Default false:
	// engines with a strict schema refuse such fields (--inject-retention).
	InjectRetention bool
	// DefaultRetention is what requests without a hint get: none, short or long;
	// "" is long. Default long (--router-default-retention).
	DefaultRetention string

	Admission admission.Headers // what the gate goes by, and whether responses tell of it

	MaxBody     int64 // largest request body in bytes, above it 413; default 32 MiB
	MaxBuffered int64 // memory in bytes for the bodies of all requests together, above it 429; 0 no limit; default 1 GiB

	IdleTimeout       time.Duration // longest wait for the worker's next byte, answer head included; 0 for ever; default 900 s
	PrefillTimeout    time.Duration // longest wait for a prefill leg's answer before the decode leg has one; 0 for ever; default 30 s (--prefill-timeout)
	TTFTTimeout       time.Duration // longest wait for the first content of a mixed worker's stream; 0 (default) for as long as it is not idle (--ttft-timeout)
	FirstTokenTimeout time.Duration // the same of a pair's decode leg; 0 for ever; default 120 s (--ttft-timeout, --pd-first-token-timeout)

	// DecodeConnectTimeout bounds the dial of a pair's decode worker; 0 (default)
	// for the transport's own (--decode-connect-timeout-ms).
	DecodeConnectTimeout time.Duration
	MaxDuration          time.Duration // longest duration of a whole request; 0 no limit; default 0
	WriteTimeout         time.Duration // longest wait for the client to take a write; 0 for ever; default 60 s

	// KeepAlive is the silence after which a client whose stream has begun gets
	// an SSE comment; 0 for none. Default 0 (--sse-keepalive).
	KeepAlive time.Duration
	// ErrorDone puts [DONE] behind the error event that ends a broken stream of
	// chat or text completions, for clients that hang without it. Whoever counts
	// [DONE] as success then counts wrong. Default false (--sse-error-done).
	ErrorDone bool
	// AcceptFinish takes a stream of chat or text completions whose choices have
	// all told a finish reason, and which then ends properly without [DONE], as
	// complete, and adds [DONE]. No engine that Infera's launchers start omits
	// it. Default false (--sse-accept-finish-reason).
	AcceptFinish bool
	// MinBodyRate is the rate, in bytes per second on average after the first
	// 30 s, at which a client must send its body, below it 408. Default 1 KiB/s
	// (--min-body-rate).
	MinBodyRate int64

	// HoldTime is for how long a stream's 200 is held back while only events
	// without content have come. Past it the next event commits, so that
	// keep-alive comments reach a client that waits for a long prefill.
	// 0 commits at the first event. Default 10 s.
	HoldTime time.Duration

	DrainDelay   time.Duration // on shutdown, time between /ready turning 503 and the end of accepting; 0 none; default 5 s
	DrainTimeout time.Duration // on shutdown, time that running requests have to finish; default 30 s
}

// Limits that are not knobs.
const (
	maxEvent  = 1 << 20  // bytes of one SSE event; above it the stream is broken off
	maxHold   = 16 << 10 // bytes of content-less events held back before the 200 (failover 4.2)
	smallBody = 64 << 10 // a plain body up to this size is read whole before the client gets a byte
)

// DefaultConfig returns the defaults named in [Config].
func DefaultConfig() Config {
	return Config{
		Mode:               Auto,
		Admission:          admission.Headers{Expose: admission.ExposeInherit},
		DirectFailover:     true,
		DirectFallback:     DirectRefuse,
		Trust:              TrustNone,
		Untrusted:          UntrustedPick,
		StripTransfer:      true,
		MaxRetries:         1,
		RetrySafety:        BeforeFirstToken,
		ConnectRetrySameEP: 1,
		MaxAttempts:        3,
		RetryBudgetShare:   0.2,
		RetryBudgetFloor:   3,
		PrefillFailure:     PrefillRetry,
		EngineRequestID:    true,
		NameWorker:         true,
		DefaultRetention:   retentionLong,
		MaxBody:            32 << 20,
		MaxBuffered:        1 << 30,
		IdleTimeout:        900 * time.Second,
		PrefillTimeout:     30 * time.Second,
		FirstTokenTimeout:  120 * time.Second,
		WriteTimeout:       60 * time.Second,
		HoldTime:           10 * time.Second,
		MinBodyRate:        1 << 10,
		DrainDelay:         5 * time.Second,
		DrainTimeout:       30 * time.Second,
	}
}

// Validate reports all faults of c.
func (c Config) Validate() error {
	errs := []error{c.Admission.Validate()}
	if c.Mode != Auto && c.Mode != Direct {
		errs = append(errs, fmt.Errorf("router mode %q: want auto or direct", c.Mode))
	}
	switch c.Trust {
	case TrustNone, TrustHMAC, TrustMTLS:
	default:
		errs = append(errs, fmt.Errorf("direct trust %q: want none, hmac or mtls", c.Trust))
	}
	if c.Untrusted != UntrustedPick && c.Untrusted != UntrustedReject {
		errs = append(errs, fmt.Errorf("direct untrusted %q: want pick or reject", c.Untrusted))
	}
	if c.DirectFallback != DirectRefuse && c.DirectFallback != DirectPolicy {
		errs = append(errs, fmt.Errorf("direct fallback %q: want refuse or policy", c.DirectFallback))
	}
	if c.RetrySafety != BeforeFirstToken && c.RetrySafety != PreDispatch {
		errs = append(errs, fmt.Errorf("retry safety %q: want %s or %s", c.RetrySafety, BeforeFirstToken, PreDispatch))
	}
	switch c.DefaultRetention {
	case "", retentionNone, retentionShort, retentionLong:
	default:
		errs = append(errs, fmt.Errorf("router default retention %q: want none, short or long", c.DefaultRetention))
	}
	if c.MaxRetries < 0 || c.MaxRetries > 5 {
		errs = append(errs, fmt.Errorf("request max retries %d: want 0 to 5", c.MaxRetries))
	}
	if c.ConnectRetrySameEP < 0 || c.ConnectRetrySameEP > 3 {
		errs = append(errs, fmt.Errorf("connect retries on the same worker %d: want 0 to 3", c.ConnectRetrySameEP))
	}
	if c.MaxAttempts < 1 || c.MaxAttempts > 8 {
		errs = append(errs, fmt.Errorf("max attempts %d: want 1 to 8", c.MaxAttempts))
	}
	if c.RetryBudgetShare < 0 || c.RetryBudgetShare > 1 || c.RetryBudgetFloor < 0 {
		errs = append(errs, fmt.Errorf("retry budget %g of the requests and %g per second: want 0 to 1, and 0 or more", c.RetryBudgetShare, c.RetryBudgetFloor))
	}
	switch c.PrefillFailure {
	case PrefillRetry, PrefillLocal, PrefillError:
	default:
		errs = append(errs, fmt.Errorf("prefill failure %q: want retry, local or error", c.PrefillFailure))
	}
	if c.MaxBody < 1 {
		errs = append(errs, fmt.Errorf("max body %d bytes: want at least 1", c.MaxBody))
	}
	if c.MinBodyRate < 1 {
		errs = append(errs, fmt.Errorf("min body rate %d bytes/s: want at least 1", c.MinBodyRate))
	}
	if c.MaxBuffered != 0 && c.MaxBuffered < c.MaxBody {
		errs = append(errs, fmt.Errorf("max buffered %d bytes: want 0 (no limit) or at least max body, %d", c.MaxBuffered, c.MaxBody))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"idle timeout", c.IdleTimeout},
		{"prefill timeout", c.PrefillTimeout},
		{"first token timeout", c.FirstTokenTimeout},
		{"ttft timeout", c.TTFTTimeout},
		{"decode connect timeout", c.DecodeConnectTimeout},
		{"max duration", c.MaxDuration},
		{"write timeout", c.WriteTimeout},
		{"hold time", c.HoldTime},
		{"sse keepalive", c.KeepAlive},
		{"drain delay", c.DrainDelay},
		{"drain timeout", c.DrainTimeout},
	} {
		if d.d < 0 {
			errs = append(errs, fmt.Errorf("%s %s: must not be negative", d.name, d.d))
		}
	}
	return errors.Join(errs...)
}
