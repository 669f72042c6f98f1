package extproc

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// ServiceName is the gRPC service that Envoy calls.
const ServiceName = "envoy.service.ext_proc.v3.ExternalProcessor"

// The names that health is asked for under. The protocol names liveness,
// readiness and the service; "" is gRPC's own; inference-extension is what GIE's
// reference picker and Infera's operator use.
const (
	healthAll       = ""
	healthLiveness  = "liveness"
	healthReadiness = "readiness"
	healthInference = "inference-extension"
)

// health answers gRPC health checks. Safe for concurrent use.
type health struct {
	healthpb.UnimplementedHealthServer
	ready    func() bool
	draining atomic.Bool

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	last    bool          // readiness at the last refresh
	stop    chan struct{} // closed when watchers must leave
	stopped bool
}

func newHealth(ready func() bool) *health {
	return &health{ready: ready, changed: make(chan struct{}), stop: make(chan struct{})}
}

// status returns the state of a service; ok is false for an unknown name.
func (h *health) status(service string) (state healthpb.HealthCheckResponse_ServingStatus, ok bool) {
	switch service {
	case healthLiveness:
		return healthpb.HealthCheckResponse_SERVING, true
	case healthAll, healthReadiness, healthInference, ServiceName:
		if h.draining.Load() || !h.ready() {
			return healthpb.HealthCheckResponse_NOT_SERVING, true
		}
		return healthpb.HealthCheckResponse_SERVING, true
	}
	return healthpb.HealthCheckResponse_SERVICE_UNKNOWN, false
}

// Check answers one question. It asks for readiness at that moment.
func (h *health) Check(_ context.Context, in *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	state, ok := h.status(in.GetService())
	if !ok {
		return nil, status.Errorf(codes.NotFound, "unknown health service %q", in.GetService())
	}
	return &healthpb.HealthCheckResponse{Status: state}, nil
}

// Watch sends the state and each change of it, until the watcher leaves or the
// server stops.
func (h *health) Watch(in *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	sent := healthpb.HealthCheckResponse_UNKNOWN
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		stopping := h.over()
		if state, _ := h.status(in.GetService()); state != sent { // the last one, too, when the server stops
			if err := stream.Send(&healthpb.HealthCheckResponse{Status: state}); err != nil {
				return err
			}
			sent = state
		}
		if stopping {
			return status.Error(codes.Unavailable, "the endpoint picker is stopping")
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-h.stop:
		}
	}
}

// over reports whether the server has come to its end.
func (h *health) over() bool {
	select {
	case <-h.stop:
		return true
	default:
		return false
	}
}

// refresh wakes the watchers when readiness has changed.
func (h *health) refresh() {
	state := h.ready() && !h.draining.Load()
	h.mu.Lock()
	defer h.mu.Unlock()
	if state == h.last {
		return
	}
	h.last = state
	close(h.changed)
	h.changed = make(chan struct{})
}

// run asks for readiness regularly until ctx is done.
func (h *health) run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		h.refresh()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// drain makes every service but liveness NOT_SERVING.
func (h *health) drain() {
	h.draining.Store(true)
	h.refresh()
}

// release ends all watches: they would keep a graceful stop from ending.
func (h *health) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopped {
		h.stopped = true
		close(h.stop)
	}
}
