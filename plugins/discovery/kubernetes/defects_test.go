package kubernetes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// crash is what the kubelet reports of an OOM kill, and restart of the container
// that follows, which is Ready only when the model is loaded.
func crash(p *corev1.Pod) {
	testfleet.SetReady(p, false)
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"},
	}
}

func backOff(p *corev1.Pod) {
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"},
	}
}

func restart(p *corev1.Pod) {
	c := &p.Status.ContainerStatuses[0]
	c.RestartCount++
	c.ContainerID += "-again"
	c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

// D4: a worker whose container was killed keeps its record, which Infera's
// routers go on believing for as long as the model loads.
func TestD4ARestartingWorkerGetsNoRequestsUntilItIsReady(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	c.add("b", b)
	f := follow(t, c.config())
	f.Want("both", a+" active", b+" active")
	before := f.worker(a).Incarnation

	c.EditPod(t, p, crash)
	f.Want("the crash", a+" dead", b+" active")
	if got := f.Log.Count("level=WARN msg=\"a worker's state changed\" worker_id=" + a); got != 1 {
		t.Errorf("the crash was said %d times, want once:\n%s", got, f.Log)
	}
	c.EditPod(t, p, backOff)
	c.EditPod(t, p, restart)
	f.Want("the restart", a+" draining", b+" active")
	if got := f.worker(a).Incarnation; got == before {
		t.Errorf("incarnation %q is the former process's", got)
	}
	after := f.worker(a).Incarnation
	c.EditPod(t, p, testfleet.Readiness(true)) // its launcher's patch of the same record changes nothing that could be seen
	f.Want("its being ready", a+" active", b+" active")
	if got := f.worker(a).Incarnation; got != after {
		t.Errorf("incarnation %q, while it loaded it was %q", got, after)
	}
}

func TestD4AFailingProbeSuspendsTheSameProcess(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	f := follow(t, c.config())
	f.Want("the worker", a+" active")
	before := f.worker(a).Incarnation
	c.EditPod(t, p, testfleet.Readiness(false))
	f.Want("the failing probe", a+" draining")
	c.EditPod(t, p, testfleet.Readiness(true))
	f.Want("its recovery", a+" active")
	if got := f.worker(a).Incarnation; got != before {
		t.Errorf("incarnation %q, want %q: it is the same process", got, before)
	}
}

// What has to be Ready is a choice: the sidecar may be what is not.
func TestD4WhatHasToBeReady(t *testing.T) {
	sidecar := func(p *corev1.Pod) {
		p.Status.ContainerStatuses[1].Ready = false
		testfleet.SetReady(p, true)
	}
	lostNode := func(p *corev1.Pod) {
		testfleet.SetReady(p, true)
		p.Status.Conditions[1].Status = corev1.ConditionFalse
	}
	unreported := func(p *corev1.Pod) { p.Status.ContainerStatuses, p.Status.Conditions = nil, nil }
	for _, tc := range []struct {
		name              string
		edit              func(*corev1.Pod)
		worker, pod, none fleet.Status
	}{
		{"everything is Ready", func(*corev1.Pod) {}, fleet.Active, fleet.Active, fleet.Active},
		{"the sidecar is not Ready", sidecar, fleet.Active, fleet.Draining, fleet.Active},
		{"the worker is not Ready", testfleet.Readiness(false), fleet.Draining, fleet.Draining, fleet.Active},
		{"the worker is not running", crash, fleet.Dead, fleet.Dead, fleet.Active},
		{"the node is lost", lostNode, fleet.Draining, fleet.Draining, fleet.Active},
		{"the kubelet has said nothing", unreported, fleet.Draining, fleet.Draining, fleet.Active},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for mode, want := range map[Readiness]fleet.Status{ReadyWorker: tc.worker, ReadyPod: tc.pod, ReadyOff: tc.none} {
				p := testfleet.WorkerPod(namespace, "a", deployment, record(a))
				tc.edit(p)
				tb := newTable(Config{Ready: mode})
				tb.put(p)
				if got := tb.worker(a).Status; got != want {
					t.Errorf("%s: %v, want %v", mode, got, want)
				}
			}
		})
	}
}

// D5: on the host's network the next Pod on a node registers the address of the
// one before it, whose end comes later.
func TestD5TheEndOfAnOldPodLeavesTheNewPodsWorker(t *testing.T) {
	c := newCluster(t)
	first := c.add("first", a)
	f := follow(t, c.config())
	f.Want("the first Pod", a+" active")
	before := f.worker(a).Incarnation
	c.EditPod(t, first, testfleet.Terminate)
	f.Want("its termination", a+" draining")
	second := c.add("second", a)
	f.Want("the second Pod", a+" active")
	now := f.worker(a).Incarnation
	if now == before || !strings.Contains(now, string(second.UID)) {
		t.Errorf("incarnation %q is not the second Pod's", now)
	}
	c.delete(first)
	c.add("b", b)
	f.Want("what came behind the first Pod's end", a+" active", b+" active")
	if got := f.worker(a).Incarnation; got != now {
		t.Errorf("incarnation %q, want %q", got, now)
	}
	c.delete(second)
	f.Want("the second Pod's end", b+" active")
}

// D5, where the old Pod's end is found out by a listing.
func TestD5AcrossAListing(t *testing.T) {
	c := newCluster(t)
	first := c.add("first", a)
	c.EditPod(t, first, testfleet.Terminate)
	c.add("second", a)
	f := follow(t, c.config())
	f.Want("both Pods", a+" active")
	c.Stop()
	f.Until("noticing", func() bool { return !f.Store.Connected() })
	c.delete(first)
	c.Compact()
	c.Start(t)
	f.Until("being in step", f.Store.Connected)
	f.Want("the second Pod", a+" active")
}

// Of two Pods that both claim to serve at one address neither can be told to lie.
func TestD5TheOldestOfTwoActivePodsIsBelieved(t *testing.T) {
	c := newCluster(t)
	first := c.add("first", a)
	thief := testfleet.WorkerPod(namespace, "thief", deployment, record(a, `,"model_name":"evil"`))
	thief.CreationTimestamp = metav1.Time{Time: metav1.Now().Add(60e9)}
	f := follow(t, c.config())
	f.Want("the first Pod", a+" active")
	c.PutPod(t, thief)
	f.Until("the contest", func() bool { return f.metric("pointsman_kubernetes_contested_workers", "") == 1 })
	c.EditPod(t, thief, func(p *corev1.Pod) { p.Labels["again"] = "yes" })
	c.add("b", b)
	f.Want("what came behind it", a+" active", b+" active")
	if got := f.worker(a).Model; got != "m" {
		t.Errorf("model %q is the newcomer's", got)
	}
	if got := f.Log.Count("several Pods claim"); got != 1 {
		t.Errorf("the contest was said %d times, want once", got)
	}
	if got := f.Store.Conflicts(); got != 1 {
		t.Errorf("%d conflicts, want 1", got)
	}
	c.delete(first)
	f.Until("the newcomer's turn", func() bool { return f.worker(a).Model == "evil" })
	if got := f.metric("pointsman_kubernetes_contested_workers", ""); got != 0 {
		t.Errorf("%v contests, want none", got)
	}
}

// D6: a Pod that registers under another port leaves no phantom.
func TestD6AChangedPortLeavesNoPhantom(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	f := follow(t, c.config())
	f.Want("the worker", a+" active")
	c.register(p, record("10.0.0.1:30001"))
	f.Want("its other port", "10.0.0.1:30001 active")
	c.delete(p)
	f.Want("its end")
}

// D13: a drain, a crash and a deletion look different.
func TestD13ADrainShowsUntilItEnds(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	c.add("b", b)
	f := follow(t, c.config())
	f.Want("both", a+" active", b+" active")
	c.EditPod(t, p, testfleet.Terminate)
	f.Want("the deletion", a+" draining", b+" active")
	c.deregister(p) // the launcher's first act on SIGTERM, while it still streams
	c.EditPod(t, p, testfleet.Readiness(false))
	f.Until("the launcher's sign-off", func() bool { return f.metric("pointsman_kubernetes_pods", "terminating") == 1 })
	if w := f.worker(a); w == nil || w.Status != fleet.Draining || w.Model != "m" {
		t.Errorf("the draining worker is %+v", w)
	}
	c.EditPod(t, p, crash) // it has exited; the sidecar still runs
	f.Want("its exit", b+" active")
	c.delete(p)
	for _, want := range []string{"former=active state=terminating", "former=terminating state=ended"} {
		if f.Log.Count(want) != 1 {
			t.Errorf("the log lacks %q:\n%s", want, f.Log)
		}
	}
}

// A router that starts while a worker drains shows the same fleet as the others.
func TestD13ADrainThatIsFirstSeenInTheListing(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	c.EditPod(t, p, testfleet.Terminate)
	f := follow(t, c.config())
	f.Want("the listing", a+" draining")
	c.EditPod(t, p, phase(corev1.PodFailed))
	f.Want("its end")
}

// E6: the sidecar listens where the operator was told to, of which the EPP is not.
func TestE6TheForwardersPortIsThePods(t *testing.T) {
	moved := func(p *corev1.Pod) { p.Spec.Containers[1].Ports[0].ContainerPort = 8100 }
	for _, tc := range []struct {
		name, more string
		edit       func(*corev1.Pod)
		want       string
	}{
		{"as by default", "", func(*corev1.Pod) {}, "10.0.0.1:8000"},
		{"moved", "", moved, "10.0.0.1:8100"},
		{"IPv6", "", func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" }, "[fd00::1]:8000"},
		{"the record's own word counts", `,"forwarder_endpoint":"10.0.0.1:9"`, moved, "10.0.0.1:9"},
		{"no address yet", "", func(p *corev1.Pod) { p.Status.PodIP = "" }, ""},
		{"no port declared", "", func(p *corev1.Pod) { p.Spec.Containers[1].Ports = nil }, ""},
		{"no sidecar", "", func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := testfleet.WorkerPod(namespace, "a", deployment, record(a, tc.more))
			tc.edit(p)
			tb := newTable(DefaultConfig())
			tb.put(p)
			if got := tb.worker(a).Endpoint; got != tc.want {
				t.Errorf("endpoint %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTheRecordsOwnStatusCounts(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a, `,"status":"draining"`)
	f := follow(t, c.config())
	f.Want("the listing", a+" draining")
	c.register(p, record(a, `,"status":"dead"`))
	f.Want("its death", a+" dead")
	c.EditPod(t, p, testfleet.Terminate)
	c.add("b", b)
	f.Want("what came behind its termination", a+" dead", b+" active")
}

// D11 and its kin: a record that makes no sense goes alone.
func TestAnUnusableRecordIsLeftOutAloneAndSaidOnce(t *testing.T) {
	c := newCluster(t)
	p := c.add("a", a)
	c.add("b", b)
	f := follow(t, c.config())
	f.Want("both", a+" active", b+" active")
	c.register(p, `{"worker_id":`)
	f.Want("the bad record", b+" active")
	for range 3 {
		c.EditPod(t, p, func(p *corev1.Pod) { p.Labels["n"] += "x" })
	}
	c.register(p, record(a, `,"status":"bogus"`))
	f.Want("a status that is not known", a+" draining", b+" active")
	c.Stop()
	f.Until("an outage", func() bool { return !f.Store.Connected() })
	c.Start(t)
	f.Until("another listing", f.Store.Connected)
	c.register(p, record(a))
	f.Want("the good record", a+" active", b+" active")
	if got := f.Store.Skipped(); got["json"] != 1 || got["status"] != 1 || len(got) != 2 {
		t.Errorf("skipped %v, want one for json and one for status", got)
	}
	if got := f.Log.Count("cannot be used"); got != 2 {
		t.Errorf("said %d times, want twice:\n%s", got, f.Log)
	}
}

func TestARecordMustBeAtItsPodsAddressWhenThatIsAsked(t *testing.T) {
	c := newCluster(t)
	c.add("a", a)
	c.add("host", "192.168.0.1:30000")
	stranger := c.add("stranger", "10.9.9.9:30000")
	c.add("named", "worker.example:30000")
	cfg := c.config()
	cfg.VerifyAddress = true
	f := follow(t, cfg)
	f.Want("the Pods' own", a+" active", "192.168.0.1:30000 active")
	if got := f.Store.Skipped()["url"]; got != 2 {
		t.Errorf("%d records skipped for their url, want 2", got)
	}
	c.EditPod(t, stranger, func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "10.9.9.9"}) })
	f.Want("its second address", a+" active", "10.9.9.9:30000 active", "192.168.0.1:30000 active")
}

func TestTheWorkersContainer(t *testing.T) {
	pod := func(containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: containers}}
	}
	ports := func(name string, ports ...int32) corev1.Container {
		c := corev1.Container{Name: name}
		for _, p := range ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{ContainerPort: p})
		}
		return c
	}
	for _, tc := range []struct {
		name       string
		pod        *corev1.Pod
		configured string
		want       string
	}{
		{"the one that declares the port", pod(ports("proxy", 15001), ports("engine", 8000, 30000)), "", "engine"},
		{"the first without declared ports", pod(ports("engine"), ports("infera-frontend", 8000)), "", "engine"},
		{"never the frontend", pod(ports("infera-frontend", 8000), ports("engine")), "", "engine"},
		{"the configured one", pod(ports("engine", 30000)), "main", "main"},
		{"none", pod(ports("infera-frontend")), "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := workerContainer(tc.pod, tc.configured, 30000); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestTheAnnotationIsInferas(t *testing.T) {
	p := testfleet.WorkerPod(namespace, "a", deployment, "x")
	if p.Annotations["infera.amd.com/worker-info"] != "x" || wire.Annotation != "infera.amd.com/worker-info" {
		t.Error("the annotation's key is not Infera's")
	}
}
