package reports

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// How reports travel.
const (
	Auto = "auto" // over the broker where the fleet has one, and from forwarders that are not heard there over HTTP
	NATS = "nats" // over the broker alone
	HTTP = "http" // from each forwarder
	Off  = "off"
)

// Modes returns the values of [Config].Mode.
func Modes() []string { return []string{Auto, NATS, HTTP, Off} }

// Config is how load is reported; start from [DefaultConfig].
type Config struct {
	// Mode is one of [Modes]. Default auto.
	Mode string
	// Interval is the least time between two reports of a forwarder: what changes
	// meanwhile goes together. Default 50 ms.
	Interval time.Duration
	// Heartbeat is how often a forwarder reports everything, changed or not. Default
	// 2 s.
	Heartbeat time.Duration
	// IdleHeartbeat is the same of a forwarder that has had nothing in flight for a
	// while; below Heartbeat, as 0, it is Heartbeat. Default 10 s.
	IdleHeartbeat time.Duration
	// WarmTimeout is how long a new replica may wait, before it says ready, for the
	// forwarders' reports and the KV events that it has missed. 0 does not wait.
	// Default 10 s.
	WarmTimeout time.Duration
	// Peers is where other replicas of an endpoint picker serve their metrics, host:port
	// with commas; a name is all its addresses, such as a headless Service's. A new
	// replica asks one for what prompts are where. "" asks nobody. Default "".
	Peers string
	// Scrape asks the engines of workers whose forwarders do not report. Default true.
	Scrape bool
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Mode: Auto, Interval: 50 * time.Millisecond, Heartbeat: 2 * time.Second, IdleHeartbeat: 10 * time.Second, WarmTimeout: 10 * time.Second, Scrape: true}
}

// Validate reports every fault of c.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("load reports: "+format, args...))
		}
	}
	check(c.Mode == Auto || c.Mode == NATS || c.Mode == HTTP || c.Mode == Off, "mode %q: want auto, nats, http or off", c.Mode)
	check(c.Interval >= time.Millisecond && c.Interval <= 10*time.Second, "interval %v: want 1ms to 10s", c.Interval)
	check(c.Heartbeat >= c.Interval && c.Heartbeat <= time.Minute, "heartbeat %v: want the interval, %v, to 1m", c.Heartbeat, c.Interval)
	check(c.IdleHeartbeat >= 0 && c.IdleHeartbeat <= time.Minute, "idle heartbeat %v: want 0 (as the other) to 1m", c.IdleHeartbeat)
	for peer := range strings.SplitSeq(c.Peers, ",") {
		host, port, err := net.SplitHostPort(strings.TrimSpace(peer))
		n, bad := strconv.ParseUint(port, 10, 16)
		check(c.Peers == "" || err == nil && host != "" && bad == nil && n > 0, "peer %q: want host:port", peer)
	}
	check(c.WarmTimeout >= 0 && c.WarmTimeout <= time.Hour, "warm timeout %v: want 0 (do not wait) to 1h", c.WarmTimeout)
	return errors.Join(errs...)
}
