package stack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
)

// BrokerConfig asks for a NATS broker that carries the requests from the
// forwarders to the engines. The zero value runs one inside this process, with
// NATS's own limits.
type BrokerConfig struct {
	Binary string // path of a nats-server to run instead
	// Events lets the engines' cache events come through it, too; false leaves
	// them on ZMQ.
	Events bool
	// User is the user:password in the URL of EPPs and forwarders; the broker takes any.
	User string
}

// Broker is a NATS server with JetStream. It can be stopped and started again
// with its data and its address kept.
type Broker struct {
	URL string // nats://host:port

	cfg     BrokerConfig
	host    string
	dir     string
	program *Service // nil for one inside this process

	mu     sync.Mutex
	server *server.Server // nil while stopped, and for a program
}

// newBroker prepares a broker at host with its data below dir; Start runs it.
func newBroker(cfg BrokerConfig, host, dir string) *Broker {
	b := &Broker{URL: "nats://" + net.JoinHostPort(host, natsPort), cfg: cfg, host: host, dir: dir}
	if cfg.Binary != "" {
		b.program = &Service{Name: "nats", dir: dir, argv: b.argv(), ready: b.greets}
	}
	return b
}

// shown returns url with the credentials of EPPs and forwarders.
func (b *Broker) shown(url string) string {
	if b.cfg.User == "" {
		return url
	}
	return strings.Replace(url, "://", "://"+b.cfg.User+"@", 1)
}

// argv is the command line of a nats-server, 2.9 and newer.
func (b *Broker) argv() []string {
	return []string{b.cfg.Binary, "-a", b.host, "-p", natsPort, "-js", "-sd", b.store()}
}

func (b *Broker) store() string { return filepath.Join(b.dir, "jetstream") }

// greets is a probe: the broker sends its first line to who connects.
func (b *Broker) greets(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(b.host, natsPort))
	if err != nil {
		return fmt.Errorf("nats at %s: %w", b.URL, err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetReadDeadline(deadline)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "INFO ") {
		return fmt.Errorf("nats at %s: %w: it says %.40q", b.URL, errors.Join(err, errNotReady), line)
	}
	return nil
}

// Start runs the broker and returns when it takes clients. It does nothing while
// the broker runs.
func (b *Broker) Start(ctx context.Context) error {
	if b.program != nil {
		if p := b.program.Process(); p != nil && p.Running() {
			return nil
		}
		return b.program.Start(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		return nil
	}
	s, err := server.NewServer(&server.Options{
		Host: b.host, Port: server.DEFAULT_PORT, JetStream: true, StoreDir: b.store(),
		NoSigs: true, NoLog: true, // with a log, it would end this process when it cannot listen
	})
	if err != nil {
		return fmt.Errorf("start nats at %s: %w", b.URL, err)
	}
	s.Start()
	if err := Until(ctx, "nats at "+b.URL+" to take clients", b.greets); err != nil {
		end(s)
		return err
	}
	b.server = s
	return nil
}

// Stop ends the broker at once: its clients see their connections break. Its
// address and its files stay for Start, what streams keep in memory does not.
func (b *Broker) Stop() {
	if b.program != nil {
		b.program.Kill()
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.server != nil {
		end(b.server)
		b.server = nil
	}
}

func end(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}
