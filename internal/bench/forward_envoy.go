package bench

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
)

// envoyConfig is the least that Envoy can be: one listener, its router, one cluster. Its
// arguments are the ports of the listener and the worker. It says itself that it is ready.
const envoyConfig = `static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: %s } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { path: /ready }
                direct_response: { status: 200 }
              - match: { prefix: / }
                route: { cluster: worker, timeout: 0s }
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: worker
    circuit_breakers: { thresholds: [ { max_connections: 10000, max_pending_requests: 10000, max_requests: 10000 } ] }
    load_assignment:
      cluster_name: worker
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %s } } } } ] } ]
`

// startEnvoy runs Envoy with one thread before the worker.
func startEnvoy(ctx context.Context, binary, worker, dir string, log io.Writer) (*forwardPart, error) {
	ports, err := freePorts(ctx, 1)
	if err != nil {
		return nil, err
	}
	_, behind, err := net.SplitHostPort(worker)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "envoy.yaml")
	if err = os.WriteFile(file, fmt.Appendf(nil, envoyConfig, ports[0], behind), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "-c", file, "--concurrency", "1", "-l", "error", "--disable-hot-restart") //nolint:gosec // the caller's own command line names it
	cmd.Stdout, cmd.Stderr = log, log
	return startPart(ctx, "Envoy", cmd, worker, ports[0], "")
}
