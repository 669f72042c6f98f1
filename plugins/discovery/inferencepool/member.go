package inferencepool

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/wire"
)

// activePorts is the annotation that restricts a Pod's target ports, which are
// separated by commas (GIE pkg/epp/datastore).
const activePorts = "inference.networking.k8s.io/active-ports"

// roleLabel is llm-d's label of a Pod's part in serving (llm-d-router
// decode-filter, prefill-filter). Its decode Pods serve whole requests, too.
const roleLabel = "llm-d.ai/role"

// state is what a Pod is doing; it is a metric's label.
type state string

const (
	stateReady       state = "ready"
	stateNotReady    state = "not_ready"   // runs, or is about to
	stateTerminating state = "terminating" // is being deleted
	stateEnded       state = "ended"
)

// member is what is known of one Pod of the pool. It never changes.
type member struct {
	uid     types.UID
	name    string
	created time.Time
	state   state
	record  string // the annotation
	fault   error  // what is wrong with it
	workers []*fleet.Worker
	bare    bool // the workers come of no record, so their models have to be found out
}

// read says what a Pod is to the pool.
func (h *podHandler) read(p *corev1.Pod) *member {
	m := &member{uid: kube.PodKey(p), name: p.Name, created: p.CreationTimestamp.Time, record: p.Annotations[wire.Annotation], bare: true}
	status := fleet.Draining
	switch {
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		m.state = stateEnded
		return m
	case p.DeletionTimestamp != nil:
		m.state = stateTerminating
	case kube.PodCondition(p, corev1.PodReady) != corev1.ConditionTrue:
		m.state = stateNotReady
	default:
		m.state, status = stateReady, fleet.Active
	}
	ports := portsOf(p, h.shape.ports)
	if p.Status.PodIP == "" || len(ports) == 0 {
		return m
	}
	var base *fleet.Worker
	if m.record != "" {
		base, m.fault = wire.DecodeRegistration("", []byte(m.record))
	}
	if base == nil {
		for _, port := range ports {
			m.workers = append(m.workers, h.plain(p, port, status))
		}
		return m
	}
	m.bare = false
	own := ports[0]
	if slices.Contains(ports, base.Port) {
		own = base.Port
	}
	for _, port := range ports {
		m.workers = append(m.workers, h.recorded(p, base, port, port == own, status))
	}
	return m
}

// portsOf returns the target ports at which p serves.
func portsOf(p *corev1.Pod, ports []int) []int {
	text, restricted := p.Annotations[activePorts]
	if !restricted {
		return ports
	}
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		if n, err := strconv.Atoi(strings.TrimSpace(part)); err == nil && slices.Contains(ports, n) && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return slices.Index(ports, a) - slices.Index(ports, b) })
	return out
}

// plain is the worker at one port of a Pod that carries no record.
func (h *podHandler) plain(p *corev1.Pod, port int, status fleet.Status) *fleet.Worker {
	at := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
	w := &fleet.Worker{
		ID: at, URL: "http://" + at, Host: p.Status.PodIP, Port: port, Endpoint: at, Transport: "http",
		Model: h.cfg.Model, BlockSize: h.cfg.BlockSize, Status: status, DPRank: -1, Incarnation: incarnation(p, port),
	}
	switch p.Labels[roleLabel] {
	case "prefill", "encode", "encode-prefill":
		w.Role = fleet.Prefill // it does not answer requests of its own
	}
	if h.cfg.KVEventsPort != 0 {
		rank := slices.Index(h.shape.ports, port)
		w.KVEvents = "tcp://" + net.JoinHostPort(p.Status.PodIP, strconv.Itoa(h.cfg.KVEventsPort+rank))
	}
	return w
}

// recorded is the worker at one port of a Pod whose record is base. The record is
// of one port, its own; the others are further ranks of the same engine.
func (h *podHandler) recorded(p *corev1.Pod, base *fleet.Worker, port int, own bool, status fleet.Status) *fleet.Worker {
	w := *base
	w.Status = max(base.Status, status)
	w.Endpoint = net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
	w.Incarnation = incarnation(p, base.Port)
	if len(h.shape.ports) == 1 {
		return &w
	}
	w.DPRank, w.DPSize = slices.Index(h.shape.ports, port), len(h.shape.ports)
	w.KVEvents, w.KVReplay = above(base.KVEvents, w.DPRank), above(base.KVReplay, w.DPRank)
	if !own {
		w.ID, w.URL, w.Host, w.Port = w.Endpoint, "http://"+w.Endpoint, p.Status.PodIP, port
		w.Incarnation = incarnation(p, port)
	}
	return &w
}

// above returns the tcp:// address n ports above addr; "" when there is none.
func above(addr string, n int) string {
	rest, ok := strings.CutPrefix(addr, "tcp://")
	host, port, err := net.SplitHostPort(rest)
	number, bad := strconv.Atoi(port)
	if !ok || err != nil || bad != nil || number+n > 65535 {
		return ""
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(number+n))
}

// incarnation tells one process behind a port from the next: by the container
// that declares the port, else by the first.
func incarnation(p *corev1.Pod, port int) string {
	name := ""
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		if slices.ContainsFunc(c.Ports, func(cp corev1.ContainerPort) bool { return int(cp.ContainerPort) == port }) {
			name = c.Name
			break
		}
		if name == "" {
			name = c.Name
		}
	}
	return kube.Incarnation(p, kube.ContainerStatus(p, name))
}
