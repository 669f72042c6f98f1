package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Stack is a running fleet behind Envoy.
type Stack struct {
	URL      string // http://host:port of the gateway
	AdminURL string // Envoy's own pages
	Dir      string // logs and data

	Etcd    *Etcd
	Broker  *Broker // nil without one
	EPPs    []*EPP
	Workers []*Worker
	Envoy   *Service
	Proxies *Proxies // nil unless asked for

	cfg    Config
	net    *subnet
	client *http.Client
	temp   bool // Dir is ours to remove
}

// Start runs everything in cfg and returns when a request through the gateway
// can be answered and each part has found all workers. On an error nothing is
// left running, and the logs stay for reading.
func Start(ctx context.Context, cfg Config) (*Stack, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	s, err := prepare(cfg)
	if err != nil {
		return nil, fmt.Errorf("stack: %w", err)
	}
	if err := s.start(ctx); err != nil {
		s.temp = false
		return nil, errors.Join(fmt.Errorf("stack: %w", err), s.Close())
	}
	return s, nil
}

// prepare takes addresses and a directory, and describes every part.
func prepare(cfg Config) (*Stack, error) {
	s := &Stack{cfg: cfg, Dir: cfg.Dir, client: newHTTPClient()}
	var err error
	if s.net, err = takeSubnet(); err != nil {
		return nil, err
	}
	if s.Dir == "" {
		s.temp = true
		if s.Dir, err = os.MkdirTemp("", "pointsman-stack-"); err != nil {
			return nil, errors.Join(fmt.Errorf("directory for logs: %w", err), s.net.release())
		}
	} else if err = os.MkdirAll(s.Dir, 0o750); err != nil {
		return nil, errors.Join(fmt.Errorf("directory for logs: %w", err), s.net.release())
	}
	gateway := s.net.addr(gatewayHost)
	s.URL, s.AdminURL = "http://"+gateway+":"+gatewayPort, "http://"+gateway+":"+envoyAdmin
	s.Etcd = newEtcd(s.net.addr(etcdHost), s.Dir)
	if cfg.Broker != nil {
		s.Broker = newBroker(*cfg.Broker, s.net.addr(natsHost), s.Dir)
	}
	for i := range max(1, cfg.EPPs) {
		s.EPPs = append(s.EPPs, s.newEPP(i))
	}
	for i, w := range cfg.Workers {
		s.Workers = append(s.Workers, s.newWorker(i, w))
	}
	if cfg.Proxied {
		if s.Proxies, err = s.newProxies(); err != nil {
			return nil, errors.Join(err, s.net.release())
		}
	}
	s.Envoy, err = s.newEnvoy()
	if err != nil {
		return nil, errors.Join(err, s.net.release())
	}
	return s, nil
}

// newEnvoy writes the bootstrap; nothing runs yet.
func (s *Stack) newEnvoy() (*Service, error) {
	a := Addresses{Gateway: strings.TrimPrefix(s.URL, "http://"), Admin: strings.TrimPrefix(s.AdminURL, "http://"), Unguarded: s.cfg.Unguarded, Unseen: s.cfg.Unseen, Subsets: s.cfg.Subsets, Retries: s.cfg.Retries, Edit: s.cfg.Edit}
	for _, e := range s.EPPs {
		a.EPPs = append(a.EPPs, e.GRPC)
	}
	for _, w := range s.Workers {
		a.Workers = append(a.Workers, w.Destination)
	}
	path, err := writeBootstrap(s.Dir, s.cfg.Bootstrap, a)
	if err != nil {
		return nil, err
	}
	return &Service{Name: "envoy", dir: s.Dir, argv: envoyArgs(s.cfg.Envoy, path), ready: s.envoyReady()}, nil
}

func (s *Stack) start(ctx context.Context) error {
	if !s.cfg.EtcdDown {
		if err := s.Etcd.Start(ctx); err != nil {
			return err
		}
	}
	if s.Broker != nil {
		if err := s.Broker.Start(ctx); err != nil {
			return err
		}
	}
	for _, service := range s.services() {
		if service == s.Envoy || service == s.brokerProgram() {
			continue
		}
		if err := service.Launch(); err != nil {
			return err
		}
	}
	if s.cfg.EtcdDown {
		return s.Envoy.Launch()
	}
	return s.WaitReady(ctx)
}

// services returns every process, in the order in which they are started.
func (s *Stack) services() []*Service {
	all := make([]*Service, 0, len(s.EPPs)+2*len(s.Workers)+2)
	if broker := s.brokerProgram(); broker != nil {
		all = append(all, broker)
	}
	for _, w := range s.Workers {
		all = append(all, &w.Engine, &w.Forwarder)
	}
	for _, e := range s.EPPs {
		all = append(all, &e.Service)
	}
	return append(all, s.Envoy)
}

// brokerProgram is the broker's process, nil when it has none of its own.
func (s *Stack) brokerProgram() *Service {
	if s.Broker == nil {
		return nil
	}
	return s.Broker.program
}

// WaitReady waits until every part is ready and has found all workers, and the
// gateway answers. Envoy is started once the EPPs are ready, so that its first
// health check finds them.
func (s *Stack) WaitReady(ctx context.Context) error {
	g, groupCtx := errgroup.WithContext(ctx)
	for _, service := range s.services() {
		if service != s.Envoy {
			g.Go(func() error { return service.Ready(groupCtx) })
		}
	}
	if err := g.Wait(); err != nil {
		return err //nolint:wrapcheck // Ready says whose it is
	}
	if s.Envoy.Process() == nil {
		if err := s.Envoy.Launch(); err != nil {
			return err
		}
	}
	if err := s.Envoy.Ready(ctx); err != nil {
		return err
	}
	for _, e := range s.EPPs {
		if err := s.WaitFleet(ctx, e.Name, e.Admin, len(s.Workers), e.Process()); err != nil {
			return err
		}
	}
	for _, w := range s.Workers {
		if err := s.WaitFleet(ctx, w.Forwarder.Name, w.ForwarderAdmin, len(s.Workers), w.Forwarder.Process()); err != nil {
			return err
		}
	}
	if s.Broker != nil {
		if err := s.WaitBroker(ctx); err != nil {
			return err
		}
	}
	return s.WaitGateway(ctx, len(s.EPPs))
}

// WaitBroker waits until every forwarder that runs is connected to the broker.
func (s *Stack) WaitBroker(ctx context.Context) error {
	for _, w := range s.Workers {
		p := w.Forwarder.Process()
		if p == nil || !p.Running() {
			continue
		}
		err := Until(ctx, w.Forwarder.Name+" to reach the broker", func(ctx context.Context) error {
			m, err := s.Metrics(ctx, w.ForwarderAdmin)
			if err == nil && m.Sum("pointsman_nats_connected", nil) == 0 {
				err = errNotReady
			}
			return err
		}, p)
		if err != nil {
			return err
		}
	}
	return nil
}

// WaitFleet waits until the program at admin counts n active workers.
func (s *Stack) WaitFleet(ctx context.Context, name, admin string, n int, alive ...*Process) error {
	return Until(ctx, name+" to count "+strconv.Itoa(n)+" workers", func(ctx context.Context) error {
		m, err := s.Metrics(ctx, admin)
		if err != nil {
			return err
		}
		if got := m.Sum("infera_active_workers", nil); got != float64(n) {
			return fmt.Errorf("%w: %s counts %v active workers", errNotReady, name, got)
		}
		return nil
	}, alive...)
}

// Check returns an error for every process that ended without being told to.
func (s *Stack) Check() error {
	var errs []error
	for _, service := range s.services() {
		if p := service.Process(); p != nil {
			errs = append(errs, p.Err())
		}
	}
	return errors.Join(errs...)
}

// Close kills everything: what is worth an orderly end has been ended before.
// It returns an error for every process that had died by itself. A temporary
// directory is removed when there is no error.
func (s *Stack) Close() error {
	errs := []error{s.Check()}
	for _, service := range s.services() {
		service.Kill()
	}
	if s.Proxies != nil {
		s.Proxies.close()
	}
	s.Etcd.Stop()
	if s.Broker != nil {
		s.Broker.Stop()
	}
	errs = append(errs, s.net.release())
	if err := errors.Join(errs...); err != nil || !s.temp {
		return err
	}
	if err := os.RemoveAll(s.Dir); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return nil
}

// WaitGateway waits until Envoy takes n EPPs for healthy, and answers.
func (s *Stack) WaitGateway(ctx context.Context, n int) error {
	what := "Envoy to find " + strconv.Itoa(n) + " healthy EPPs"
	err := Until(ctx, what, func(ctx context.Context) error {
		raw, err := Get(ctx, s.client, s.AdminURL+"/stats?filter=cluster.epp.membership_healthy")
		if err != nil {
			return err
		}
		if !strings.HasSuffix(strings.TrimSpace(string(raw)), ": "+strconv.Itoa(n)) {
			return fmt.Errorf("%w: %s", errNotReady, raw)
		}
		return nil
	}, s.Envoy.Process())
	if err != nil {
		return err
	}
	return Until(ctx, "an answer through the gateway", httpOK(s.client, s.URL+"/v1/models"), s.Envoy.Process())
}
