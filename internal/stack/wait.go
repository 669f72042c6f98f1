package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// pollEvery is the pause between two looks at something not ready yet.
const pollEvery = 20 * time.Millisecond

// probeTimeout bounds one look.
const probeTimeout = 2 * time.Second

// Until calls probe again and again until it returns nil. It gives up with
// probe's last error when ctx ends, and at once when one of the processes that
// must stay up has ended.
func Until(ctx context.Context, what string, probe func(context.Context) error, alive ...*Process) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, probeTimeout)
		err := probe(attempt)
		cancel()
		if err == nil {
			return nil
		}
		for _, p := range alive {
			if dead := p.Err(); dead != nil {
				return fmt.Errorf("waiting for %s: %w", what, dead)
			}
		}
		select {
		case <-ctx.Done():
			var tails strings.Builder
			for _, p := range alive {
				tails.WriteString("\n" + p.Tail())
			}
			return fmt.Errorf("waiting for %s: %w: %w%s", what, context.Cause(ctx), err, tails.String())
		case <-tick.C:
		}
	}
}

// errNotReady says that an endpoint answered, but not that it is ready.
var errNotReady = errors.New("not ready")

// httpOK is a probe: GET url answers 200.
func httpOK(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := Get(ctx, client, url)
		return err
	}
}

// Get returns the body of a 200 answer to GET url, at most 16 MiB of it.
func Get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err //nolint:wrapcheck // a *url.Error names the method and the URL
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", url, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %w: %s: %.200s", url, errNotReady, resp.Status, body)
	}
	return body, nil
}

// grpcServing is a probe: the gRPC health service at addr calls service SERVING.
func grpcServing(addr, service string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return fmt.Errorf("health of %s: %w", addr, err)
		}
		defer conn.Close()
		resp, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			return fmt.Errorf("health of %s: %w", addr, err)
		}
		if resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			return fmt.Errorf("health of %s: %w: %q is %s", addr, errNotReady, service, resp.GetStatus())
		}
		return nil
	}
}
