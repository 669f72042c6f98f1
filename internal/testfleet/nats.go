package testfleet

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// natsReady bounds how long a broker may take to start.
const natsReady = 20 * time.Second

// NATS is a real NATS broker with JetStream: in the test's process, or
// Debian's. Its URL stays over a restart; what streams keep in memory does not.
type NATS struct {
	URL string // nats://host:port

	address string
	dir     string
	edit    func(*server.Options)
	binary  string         // of another process; "" for this one
	server  *server.Server // nil while stopped, and for another process
	process *exec.Cmd      // nil while stopped, and for this process
}

// StartNATS starts a broker in this process that ends with the test. edit, which
// may be nil, changes its options before each start.
func StartNATS(tb testing.TB, edit func(*server.Options)) *NATS {
	tb.Helper()
	return startNATS(tb, &NATS{edit: edit})
}

// StartOldNATS starts the nats-server that is installed on this system, which
// on Debian is 2.9, and skips the test when there is none.
func StartOldNATS(tb testing.TB) *NATS {
	tb.Helper()
	for _, name := range []string{"nats-server", "/usr/sbin/nats-server", os.Getenv("NATS_SERVER_BINARY")} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return startNATS(tb, &NATS{binary: path})
		}
	}
	tb.Skip("no nats-server is installed: apt-get install nats-server, or set NATS_SERVER_BINARY")
	return nil
}

func startNATS(tb testing.TB, n *NATS) *NATS {
	tb.Helper()
	n.address, n.dir = freeAddress(tb), tb.TempDir()
	n.URL = "nats://" + n.address
	n.Start(tb)
	tb.Cleanup(func() { n.Stop(tb) })
	return n
}

// Start starts the broker and waits until it takes clients.
func (n *NATS) Start(tb testing.TB) {
	tb.Helper()
	host, text, err := net.SplitHostPort(n.address)
	if err != nil {
		tb.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		tb.Fatal(err)
	}
	if n.binary != "" {
		n.startProcess(tb, host, text)
		return
	}
	opts := &server.Options{
		Host: host, Port: port, NoLog: true, NoSigs: true, JetStream: true, StoreDir: n.dir,
	}
	if n.edit != nil {
		n.edit(opts)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		tb.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(natsReady) {
		s.Shutdown()
		tb.Fatal("the NATS broker does not become ready")
	}
	n.server = s
}

func (n *NATS) startProcess(tb testing.TB, host, port string) {
	tb.Helper()
	n.process = exec.Command(n.binary, "-a", host, "-p", port, "-js", "-sd", n.dir) //nolint:gosec,noctx // the system's broker; Stop ends it
	if err := n.process.Start(); err != nil {
		tb.Fatal(err)
	}
	for end := time.Now().Add(natsReady); ; {
		c, err := nats.Connect(n.URL)
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			n.Stop(tb)
			tb.Fatalf("%s does not become ready: %v", n.binary, err)
		}
	}
}

// Stop ends the broker at once: its clients see their connections break.
func (n *NATS) Stop(tb testing.TB) {
	tb.Helper()
	if n.server != nil {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		n.server = nil
	}
	if n.process != nil {
		_ = n.process.Process.Kill()
		_ = n.process.Wait()
		n.process = nil
	}
}

// Restart stops the broker and starts it with the same data and address.
func (n *NATS) Restart(tb testing.TB) {
	tb.Helper()
	n.Stop(tb)
	n.Start(tb)
}

// Connect returns a connection for the test's own use; it ends with the test.
func (n *NATS) Connect(tb testing.TB, opts ...nats.Option) *nats.Conn {
	tb.Helper()
	c, err := nats.Connect(n.URL, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}
