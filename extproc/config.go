package extproc

import (
	"errors"
	"fmt"
	"time"

	"pointsman/admission"
)

// Config is the ext-proc server's tuning.
type Config struct {
	// MaxBody is the largest request body in bytes; over it the request is
	// refused with 413 while its chunks still arrive. Default 32 MiB.
	MaxBody int
	// MaxBuffered is how many bytes of request bodies may be held at once, of all
	// requests together; over it further bodies are refused with 429. 0 is no
	// limit. Default 1 GiB.
	MaxBuffered int64
	// MaxMessage is the largest gRPC message in bytes. Envoy may send a whole
	// body in one, so it must exceed MaxBody. Default 64 MiB.
	MaxMessage int
	// ChunkSize is the largest piece of a body in one answer, in bytes. Some
	// data planes take no more than 64 KB. Default 62000, as the protocol's
	// reference implementation uses.
	ChunkSize int
	// MaxInFlight is how many ext-proc streams may be open at once, waiting
	// requests included; over it new ones are refused with 429, and those that say
	// nothing, once there are a quarter more, with RESOURCE_EXHAUSTED. It protects
	// this program, whatever the gate's mode; capacity of the workers is the gate's.
	// 0 is no limit. Default 32768: some 1.5 GB, and far more than one picker serves.
	MaxInFlight int
	// Admission names the headers that the gate goes by.
	Admission admission.Headers
	// DestinationPort is the forwarders' port where a worker's record names no
	// endpoint. Default 8000.
	DestinationPort int
	// Endpoints is how many endpoints an answer names, the best first: a gateway that
	// cannot reach one takes the next. 1 to 8; more than 1 only behind gateways that
	// take a list, for ORIGINAL_DST clusters answer 503 to one. Default 1.
	Endpoints int
	// ClearRouteCache asks Envoy to select the route again after the routing
	// headers are set. Needed only where a route matches on them; otherwise it
	// may re-roll a weighted choice of pools. Default false.
	ClearRouteCache bool

	// ModeOverride asks gateways that show response bodies, but not in the mode
	// FULL_DUPLEX_STREAMED, to stop it, once forwarders report how requests end. Those
	// that do not heed it are asked no more. Default true.
	ModeOverride bool

	// RewriteHeader lets the protocol's request header x-gateway-model-name-rewrite
	// name the model that is put into the body, where no rewrite of the pool is for
	// the request's. A client could get past a check of the body's model by it, so
	// it is for gateways that set or remove that header themselves. Default false.
	RewriteHeader bool

	// Conformance makes the server stand in for the picker of the Gateway API
	// Inference Extension's conformance suite: a request header of the suite
	// confines the pick, and responses tell which endpoint served. Any client can
	// steer requests then. Default false.
	Conformance bool

	// ReservationTTL is for how long a request counts whose end is not seen here, with
	// response_body_mode NONE, and that no forwarder reports on. Default 30 s.
	ReservationTTL time.Duration

	// Secure serves TLS on the main port. Default true.
	Secure bool

	// DrainDelay is how long the server says NOT_SERVING and still takes
	// requests, before it closes: load balancers need that to look away.
	// Default 5 s.
	DrainDelay time.Duration
	// DrainTimeout is how long, after DrainDelay, open streams may take to end
	// before they are cut; 0 cuts them at once. Default 300 s.
	DrainTimeout time.Duration
	// ReadyInterval is how often readiness is asked for on behalf of health
	// watchers. Default 500 ms.
	ReadyInterval time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MaxBody:         32 << 20,
		MaxBuffered:     1 << 30,
		MaxMessage:      64 << 20,
		MaxInFlight:     32768,
		ChunkSize:       62000,
		DestinationPort: 8000,
		Endpoints:       1,
		ModeOverride:    true,
		Secure:          true,
		DrainDelay:      5 * time.Second,
		DrainTimeout:    300 * time.Second,
		ReadyInterval:   500 * time.Millisecond,
		ReservationTTL:  30 * time.Second,
	}
}

// maxEndpoints bounds Config.Endpoints: a gateway that has failed as often has other
// troubles.
const maxEndpoints = 8

// messageOverhead is room for what surrounds a body in its message.
const messageOverhead = 64 << 10

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.MaxBody > 0, "max body %d: must be at least 1 byte", c.MaxBody)
	check(c.MaxBuffered == 0 || c.MaxBuffered >= int64(c.MaxBody), "max buffered %d: must be 0 (no limit) or at least max body, %d", c.MaxBuffered, c.MaxBody)
	check(c.MaxMessage >= c.MaxBody+messageOverhead,
		"max message %d: must exceed max body %d by %d, since a whole body may come in one message", c.MaxMessage, c.MaxBody, messageOverhead)
	check(c.ChunkSize > 0, "chunk size %d: must be at least 1 byte", c.ChunkSize)
	check(c.MaxInFlight >= 0, "max in flight %d: must be 0 (no limit) or more", c.MaxInFlight)
	if err := c.Admission.Validate(); err != nil {
		errs = append(errs, err)
	}
	check(c.Endpoints >= 1 && c.Endpoints <= maxEndpoints, "endpoints per answer %d: must be 1 to %d", c.Endpoints, maxEndpoints)
	check(c.DestinationPort > 0 && c.DestinationPort < 1<<16, "destination port %d: must be 1 to 65535", c.DestinationPort)
	check(c.DrainDelay >= 0, "drain delay %v: must not be negative", c.DrainDelay)
	check(c.DrainTimeout >= 0, "drain timeout %v: must not be negative", c.DrainTimeout)
	check(c.ReservationTTL > 0 && c.ReservationTTL <= 24*time.Hour, "reservation time %v: want above 0, to 24h", c.ReservationTTL)
	check(c.ReadyInterval > 0, "ready interval %v: must be positive", c.ReadyInterval)
	return errors.Join(errs...)
}
