package http

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"pointsman/fleet"
	"pointsman/internal/retry"
	"pointsman/reports"
	"pointsman/wire"
)

// Timing and bounds of the subscriptions.
const (
	dialTimeout  = 2 * time.Second
	headTimeout  = 5 * time.Second
	backoffLeast = 100 * time.Millisecond
	backoffMost  = 5 * time.Second
	foreignPause = 30 * time.Second // until an endpoint without reports is asked again, doubled each time
	foreignMost  = 2 * time.Minute
	wantEvery    = 2 * time.Second  // how often it is looked whether an endpoint is to be asked
	maxSilence   = 4                // heartbeats after which a stream is dead
	firstSilence = 15 * time.Second // the same before the first report
	maxEndpoints = 4096
)

// errForeign means that an endpoint is no forwarder of ours, or an older one.
var errForeign = errors.New("the endpoint streams no load reports")

// Subscriber follows the forwarders of a fleet. Make it with [NewSubscriber].
type Subscriber struct {
	store *fleet.Store
	board *reports.Board
	port  int
	want  func(worker string) bool
	log   *slog.Logger
	http  *http.Client
	url   string // scheme and "://"

	mu   sync.Mutex
	ends map[string]*endpoint // by host:port
}

type endpoint struct {
	stop  context.CancelFunc
	asked bool // it has answered with a report, or has failed
}

// NewSubscriber returns a subscriber of the forwarders beside the workers of store,
// at port where a worker's record names none. want says whether a worker's forwarder
// is to be asked at all; nil asks every one.
func NewSubscriber(store *fleet.Store, board *reports.Board, port int, want func(worker string) bool, log *slog.Logger) *Subscriber {
	d := &net.Dialer{Timeout: dialTimeout}
	return &Subscriber{
		store: store, board: board, port: port, want: want, log: log, ends: map[string]*endpoint{}, url: "http://",
		http: client(&http.Transport{
			DialContext: d.DialContext, ResponseHeaderTimeout: headTimeout,
			DisableCompression: true, MaxIdleConnsPerHost: -1, Proxy: nil,
		}),
	}
}

// Secure has the forwarders asked over TLS, by what conf returns at each dial; where
// that names no server, the certificate must be for the endpoint's host. Call it
// before Run.
func (s *Subscriber) Secure(conf func() *tls.Config) {
	s.url = "https://"
	transport := &http.Transport{ResponseHeaderTimeout: headTimeout, DisableCompression: true, MaxIdleConnsPerHost: -1, Proxy: nil}
	transport.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		cfg := conf()
		if cfg.ServerName == "" {
			host, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, fmt.Errorf("endpoint %s: %w", addr, err)
			}
			cfg = cfg.Clone()
			cfg.ServerName = host
		}
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTimeout}, Config: cfg}
		return d.DialContext(ctx, network, addr)
	}
	s.http = client(transport)
}

// client returns a client that goes where it is sent and nowhere else: an endpoint of
// the fleet must not have others asked, in plain http at that.
func client(t *http.Transport) *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Run follows the fleet until ctx is done, and returns nil when all has ended.
func (s *Subscriber) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		changed := s.store.Changed()
		s.reconcile(ctx, &wg)
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// reconcile starts and stops what the fleet has gained and lost.
func (s *Subscriber) reconcile(ctx context.Context, wg *sync.WaitGroup) {
	there := s.endpoints()
	s.mu.Lock()
	defer s.mu.Unlock()
	for dest, e := range s.ends {
		if _, ok := there[dest]; !ok {
			e.stop()
			delete(s.ends, dest)
		}
	}
	for dest, worker := range there {
		if s.ends[dest] != nil {
			continue
		}
		own, stop := context.WithCancel(ctx)
		e := &endpoint{stop: stop}
		s.ends[dest] = e
		wg.Go(func() { s.follow(own, e, dest, worker) })
	}
}

// endpoints returns the worker behind each endpoint of the fleet.
func (s *Subscriber) endpoints() map[string]string {
	there := map[string]string{}
	for _, w := range s.store.Snapshot().Workers {
		if len(there) < maxEndpoints {
			there[w.Destination(s.port)] = w.ID
		}
	}
	return there
}

// follow keeps a subscription to one endpoint.
func (s *Subscriber) follow(ctx context.Context, e *endpoint, dest, worker string) {
	backoff := retry.NewBackoff(backoffLeast, backoffMost)
	for ctx.Err() == nil {
		if s.want != nil && !s.want(worker) {
			s.settled(e)
			retry.Sleep(ctx, wantEvery)
			continue
		}
		reported, err := s.listen(ctx, e, dest, worker)
		s.settled(e)
		if reported {
			backoff.Reset()
		}
		wait := backoff.Next()
		if errors.Is(err, errForeign) {
			wait = min(max(2*wait, foreignPause), foreignMost)
		}
		s.log.LogAttrs(ctx, slog.LevelDebug, "load reports of a forwarder end",
			slog.String("endpoint", dest), slog.String("worker_id", worker), slog.Any("error", err))
		retry.Sleep(ctx, wait)
	}
}

func (s *Subscriber) settled(e *endpoint) {
	s.mu.Lock()
	e.asked = true
	s.mu.Unlock()
}

// listen reads an endpoint's reports until it ends. reported says that there was one.
func (s *Subscriber) listen(ctx context.Context, e *endpoint, dest, worker string) (reported bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+dest+Path+"?picker="+url.QueryEscape(s.board.Me())+"&worker="+url.QueryEscape(worker), nil)
	if err != nil {
		return false, fmt.Errorf("endpoint %s: %w", dest, err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return false, fmt.Errorf("subscribe: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable:
		return false, errors.New("the forwarder takes no subscription now")
	case resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-ndjson":
		return false, errForeign
	}
	silent := time.AfterFunc(firstSilence, cancel)
	defer silent.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), wire.MaxReport+1)
	source := "" // whose stream it is
	for lines.Scan() {
		r, err := wire.DecodeReport(lines.Bytes())
		if err == nil && source != "" && r.Source != source {
			err = fmt.Errorf("%w: a stream of %s's has one of %s", wire.ErrReport, source, r.Source)
		}
		if err != nil {
			s.board.Malformed()
			return reported, err
		}
		source = r.Source
		silent.Reset(maxSilence * r.Beat)
		s.board.Take(time.Now(), reports.ViaHTTP, r)
		if !reported {
			reported = true
			s.settled(e)
		}
		if s.want != nil && !s.want(worker) {
			return true, nil // it is heard by the better way
		}
	}
	if err := lines.Err(); err != nil {
		return reported, fmt.Errorf("read: %w", err)
	}
	return reported, nil
}

// Pending returns how many forwarders of the fleet have not been asked yet, those
// included that [Subscriber.Run] has not come to.
func (s *Subscriber) Pending() (missing int) {
	there := s.endpoints()
	s.mu.Lock()
	defer s.mu.Unlock()
	for dest := range there {
		if e := s.ends[dest]; e == nil || !e.asked {
			missing++
		}
	}
	return missing
}
