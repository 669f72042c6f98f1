package kubernetes

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"pointsman/fleet"
	"pointsman/internal/kube"
	"pointsman/wire"
)

// state is what a Pod's worker is doing; it is a metric's label.
type state string

const (
	stateNone        state = "unregistered" // no record, or not running yet
	stateUnusable    state = "unusable"     // a record that makes no sense
	stateEnded       state = "ended"        // the Pod, or a terminating Pod's worker, has run to its end
	stateDown        state = "down"         // the worker's container is not running
	stateNotReady    state = "not_ready"    // the worker's container runs and is not Ready
	stateTerminating state = "terminating"  // the Pod is being deleted
	stateInactive    state = "inactive"     // the record itself says draining or dead
	stateActive      state = "active"
)

// pod is what is known of one Pod.
type pod struct {
	uid     types.UID
	name    string
	created time.Time
	state   state

	record string        // the annotation
	base   *fleet.Worker // what record says; nil when nothing usable
	fault  error         // what is wrong with record

	// worker is what the Pod claims for the fleet, nil for nothing. It is base
	// with the Pod's own status and incarnation.
	worker *fleet.Worker
}

// id returns the worker_id that the Pod claims, "" for none.
func (p *pod) id() string {
	if p == nil || p.worker == nil {
		return ""
	}
	return p.worker.ID
}

// observe says what a Pod is, given what it was, nil when it is new. Rules
// (contract §2.1, and §11 where Infera's routers fall short):
//
//   - phase other than Running: no worker.
//   - no record: no worker, except in a terminating Pod that had one. Infera's
//     launchers clear their record when they begin to drain; such a worker still
//     streams, and it shows as draining until it ends (D13).
//   - terminating: draining, also when the Pod is seen for the first time. Infera
//     does not register those; they are no candidates either way, and a fleet that
//     does not depend on what was seen before is the same on all routers.
//   - container not running, as after an OOM kill (D4): dead.
//   - container running and not Ready: draining, not dead, so that what is known
//     of its cache is kept if it is the same process that becomes Ready again.
//   - after a restart the old record holds again once the container is Ready:
//     the launcher writes it anew without a change that could be seen.
func (t *table) observe(p *corev1.Pod, was *pod) *pod {
	now := &pod{uid: kube.PodKey(p), name: p.Name, created: p.CreationTimestamp.Time, state: stateNone}
	switch p.Status.Phase {
	case corev1.PodRunning:
	case corev1.PodSucceeded, corev1.PodFailed:
		now.state = stateEnded
		return now
	default:
		return now
	}
	t.read(now, p, was)
	if now.base == nil {
		if now.fault != nil {
			now.state = stateUnusable
		}
		return now
	}
	c := kube.ContainerStatus(p, workerContainer(p, t.cfg.Container, now.base.Port))
	var status fleet.Status
	now.state, status = t.judge(now.base, p, c)
	if now.state == stateEnded {
		return now
	}
	w := *now.base
	w.Status, w.Incarnation = status, kube.Incarnation(p, c)
	if w.Endpoint == "" {
		w.Endpoint = frontendEndpoint(p)
	}
	now.worker = &w
	return now
}

// read sets what the annotation says. A record that was read before is not read
// again.
func (t *table) read(now *pod, p *corev1.Pod, was *pod) {
	now.record = p.Annotations[wire.Annotation]
	terminating := p.DeletionTimestamp != nil
	switch {
	case now.record == "" && terminating && was != nil && was.worker != nil:
		now.base = was.base
	case now.record == "":
	case was != nil && was.record == now.record && (was.base != nil || was.fault != nil) && !t.cfg.VerifyAddress:
		now.base, now.fault = was.base, was.fault
	default:
		now.base, now.fault = wire.DecodeRegistration("", []byte(now.record))
		if now.base != nil && t.cfg.VerifyAddress {
			if err := verify(now.base, p); err != nil {
				now.base, now.fault = nil, err
			}
		}
	}
}

// judge returns a registered worker's state, and what the fleet shall know of it.
func (t *table) judge(w *fleet.Worker, p *corev1.Pod, c *corev1.ContainerStatus) (state, fleet.Status) {
	attentive := t.cfg.Ready != ReadyOff
	switch {
	case p.DeletionTimestamp != nil && c != nil && c.State.Terminated != nil:
		return stateEnded, fleet.Dead
	case p.DeletionTimestamp != nil:
		return stateTerminating, max(w.Status, fleet.Draining)
	case attentive && down(c):
		return stateDown, fleet.Dead
	case !t.cfg.Ready.ready(p, c):
		return stateNotReady, max(w.Status, fleet.Draining)
	case w.Status != fleet.Active:
		return stateInactive, w.Status
	}
	return stateActive, fleet.Active
}

// verify refuses a record whose URL is at none of the Pod's own addresses.
func verify(w *fleet.Worker, p *corev1.Pod) error {
	addr, err := netip.ParseAddr(w.Host)
	if err != nil {
		return &wire.RecordError{Field: "url", Err: fmt.Errorf("host %q is not an IP address of the Pod", w.Host)}
	}
	ips := []string{p.Status.PodIP, p.Status.HostIP}
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	for _, ip := range p.Status.HostIPs {
		ips = append(ips, ip.IP)
	}
	for _, ip := range ips {
		if own, err := netip.ParseAddr(ip); err == nil && own == addr {
			return nil
		}
	}
	return &wire.RecordError{Field: "url", Err: errors.New("host " + w.Host + " is neither the Pod's address nor its node's")}
}
