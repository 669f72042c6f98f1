package stack

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Proxies stand before the engines, before the broker and before etcd as the
// forwarders see it, and spoil what they carry when they are told to. The EPPs
// reach the engines through the same proxies, etcd and the broker directly.
type Proxies struct {
	Workers []*Proxy // in the order of Stack.Workers
	Broker  *Proxy   // nil without a broker
	Etcd    *Proxy

	side []*Proxy // of the engines' other ports, never spoiled
}

// Proxy is one address in front of another. Its methods may be called from any
// goroutine; each undoes what an earlier one did.
type Proxy struct {
	mu    sync.Mutex
	proxy *toxiproxy.Proxy
	toxic string // in force
}

// The ways to spoil a connection, open or new.
const (
	toxicSilence = `{"name":"fault","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`
	toxicReset   = `{"name":"fault","type":"reset_peer","stream":"downstream","attributes":{"timeout":0}}`
)

// newProxies starts every proxy: what is behind them need not run yet.
func (s *Stack) newProxies() (*Proxies, error) {
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	all := &Proxies{}
	start := func(listen, upstream string) (*Proxy, error) {
		p := &Proxy{proxy: toxiproxy.NewProxy(server, listen, listen, upstream)}
		if err := p.proxy.Start(); err != nil {
			all.close()
			return nil, fmt.Errorf("fault proxy at %s: %w", listen, err)
		}
		return p, nil
	}
	for i := range s.Workers {
		front, back := s.net.addr(firstWorker+i), s.net.addr(firstWorker+behind+i)
		for _, port := range [...]string{enginePort, eventsPort, replayPort, pdPort} {
			p, err := start(net.JoinHostPort(front, port), net.JoinHostPort(back, port))
			if err != nil {
				return nil, err
			}
			if port == enginePort {
				all.Workers = append(all.Workers, p)
			} else {
				all.side = append(all.side, p)
			}
		}
	}
	var err error
	if all.Etcd, err = start(net.JoinHostPort(s.net.addr(etcdProxyHost), etcdPort), strings.TrimPrefix(s.Etcd.Endpoint, "http://")); err != nil {
		return nil, err
	}
	if s.Broker == nil {
		return all, nil
	}
	all.Broker, err = start(net.JoinHostPort(s.net.addr(natsProxyHost), natsPort), strings.TrimPrefix(s.Broker.URL, "nats://"))
	return all, err
}

func (p *Proxies) close() {
	for _, one := range append(append([]*Proxy{p.Broker, p.Etcd}, p.Workers...), p.side...) {
		if one != nil {
			one.proxy.Stop()
		}
	}
}

// Refuse closes the port, and every connection through it.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proxy.Stop()
}

// Silence keeps connections open and takes new ones, but nothing comes back.
func (p *Proxy) Silence() error { return p.spoil(toxicSilence) }

// Reset ends connections with a RST as soon as an answer comes through.
func (p *Proxy) Reset() error { return p.spoil(toxicReset) }

func (p *Proxy) spoil(toxic string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.heal(); err != nil {
		return err
	}
	if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		return fmt.Errorf("fault proxy at %s: %w", p.proxy.Listen, err)
	}
	p.toxic = "fault"
	return nil
}

// Heal lets everything through again. Connections that had been silenced are
// closed, for a part of what they carried is lost.
func (p *Proxy) Heal() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heal()
}

func (p *Proxy) heal() error {
	if p.toxic != "" {
		p.proxy.Stop() // its connections with it
		if err := p.proxy.Toxics.RemoveToxic(context.Background(), p.toxic); err != nil {
			return fmt.Errorf("fault proxy at %s: %w", p.proxy.Listen, err)
		}
		p.toxic = ""
	}
	p.proxy.Lock()
	enabled := p.proxy.Enabled
	p.proxy.Unlock()
	if enabled {
		return nil
	}
	if err := p.proxy.Start(); err != nil {
		return fmt.Errorf("fault proxy at %s: %w", p.proxy.Listen, err)
	}
	return nil
}
