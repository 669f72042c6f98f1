package inferencepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"pointsman/internal/kube"
)

// poolGroup is the API group of InferencePools.
const poolGroup = "inference.networking.k8s.io"

// shape is what a pool says of its endpoints.
type shape struct {
	selector string
	ports    []int
	h2c      bool // the endpoints speak HTTP/2 without TLS
}

func (s *shape) same(o *shape) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.selector == o.selector && slices.Equal(s.ports, o.ports) && s.h2c == o.h2c
}

// poolSpec is what is read of an InferencePool's spec (api/v1). The picker is
// optional since GIE 1.6.
type poolSpec struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	TargetPorts []struct {
		Number int `json:"number"`
	} `json:"targetPorts"`
	AppProtocol       string `json:"appProtocol"`
	EndpointPickerRef struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
		Port struct {
			Number int `json:"number"`
		} `json:"port"`
	} `json:"endpointPickerRef"`
}

// shapeOf reads a pool.
func shapeOf(pool *kube.Object) (*shape, poolSpec, error) {
	var spec poolSpec
	if err := json.Unmarshal(pool.Spec, &spec); err != nil {
		return nil, spec, err
	}
	out := &shape{h2c: spec.AppProtocol == "kubernetes.io/h2c"}
	for _, p := range spec.TargetPorts {
		out.ports = append(out.ports, p.Number)
	}
	if len(spec.Selector.MatchLabels) == 0 {
		return nil, spec, errors.New("it has no selector, which would be every Pod")
	}
	selector, err := labels.ValidatedSelectorFromSet(spec.Selector.MatchLabels)
	if err != nil {
		return nil, spec, fmt.Errorf("selector: %w", err)
	}
	out.selector = selector.String()
	if len(out.ports) == 0 {
		return nil, spec, errors.New("it has no target ports")
	}
	if err := checkPorts(out.ports); err != nil {
		return nil, spec, fmt.Errorf("target ports: %w", err)
	}
	return out, spec, nil
}

// poolHandler follows the pool; it implements [kube.Handler].
type poolHandler struct{ *follower }

// Replace implements [kube.Handler].
func (h poolHandler) Replace(ctx context.Context, all []*kube.Object) {
	h.metrics.lists.WithLabelValues("inferencepools").Inc()
	h.found()
	for _, pool := range all {
		if pool.Name == h.cfg.Pool {
			h.Put(ctx, pool)
			return
		}
	}
	h.gone(ctx)
}

// Put implements [kube.Handler].
func (h poolHandler) Put(ctx context.Context, pool *kube.Object) {
	next, spec, err := shapeOf(pool)
	if err != nil {
		if !h.shapeless() || h.wait(fmt.Sprintf("the InferencePool %s cannot be used: %v", h.poolName(), err)) {
			h.log.LogAttrs(ctx, slog.LevelWarn, "the InferencePool cannot be used; what it said before stays",
				slog.String("pool", h.poolName()), slog.Any("error", err))
		}
		return
	}
	h.waiting.Store(nil)
	h.metrics.found.Set(1)
	h.checkPort(ctx, spec.EndpointPickerRef.Name, spec.EndpointPickerRef.Port.Number)
	if !h.reshape(next) {
		return
	}
	h.log.LogAttrs(ctx, slog.LevelInfo, "the InferencePool says which Pods are workers", slog.String("pool", h.poolName()),
		slog.String("selector", next.selector), slog.Any("target_ports", next.ports))
}

// checkPort counts, and says once, that the pool names another port for its picker.
func (h poolHandler) checkPort(ctx context.Context, service string, port int) {
	if port == h.cfg.PickerPort || h.cfg.PickerPort == 0 || service == "" {
		port = 0
	}
	if port == h.otherPort {
		return
	}
	h.otherPort = port
	if port == 0 {
		h.metrics.port.Set(0)
		return
	}
	h.metrics.port.Set(1)
	h.log.LogAttrs(ctx, slog.LevelWarn, "the InferencePool names another port for its endpoint picker than this one listens on; gateways reach it only if the Service maps the one to the other",
		slog.String("pool", h.poolName()), slog.String("service", service), slog.Int("port", port), slog.Int("grpc_port", h.cfg.PickerPort))
}

// Remove implements [kube.Handler].
func (h poolHandler) Remove(ctx context.Context, _ *kube.Object) { h.gone(ctx) }

// gone empties the fleet: who asks for a pool that does not exist is told so.
func (h poolHandler) gone(ctx context.Context) {
	if h.wait("the InferencePool " + h.poolName() + " does not exist") {
		h.log.LogAttrs(ctx, slog.LevelWarn, "the InferencePool does not exist; waiting for it", slog.String("pool", h.poolName()))
	}
	h.reshape(nil)
}

// shapeless reports whether no pool has said yet which Pods are workers.
func (f *follower) shapeless() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shape == nil
}

// reshape has the Pods followed as next says; it reports whether that is new.
func (f *follower) reshape(next *shape) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shape.same(next) {
		return false
	}
	f.shape = next
	wake(f.shaped)
	return true
}

// found notes that the API server has answered about the pool.
func (h poolHandler) found() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lostPool = false; h.listed {
		h.fresh(time.Now())
	}
}

// Fresh implements [kube.Handler].
func (h poolHandler) Fresh(time.Time) {}

// Watching implements [kube.Handler].
func (h poolHandler) Watching() { h.metrics.watches.WithLabelValues("inferencepools").Inc() }

// InStep implements [kube.Handler].
func (h poolHandler) InStep(context.Context, string, bool) {}

// Ended implements [kube.Handler].
func (h poolHandler) Ended(ctx context.Context, err error, routine, news bool) {
	h.metrics.failed("inferencepools", err)
	if routine {
		return
	}
	h.mu.Lock()
	h.lostPool = true
	h.feed.Lost()
	h.mu.Unlock()
	if h.shapeless() && err != nil {
		h.wait(fmt.Sprintf("the InferencePool %s cannot be read: %v", h.poolName(), err))
	}
	if news {
		h.log.LogAttrs(ctx, slog.LevelWarn, "the InferencePool cannot be read; what it said before stays",
			slog.String("pool", h.poolName()), slog.String("server", h.client.Host), slog.Any("error", err))
	}
}
