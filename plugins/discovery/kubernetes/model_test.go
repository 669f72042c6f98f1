package kubernetes

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// world is a handful of Pods, and what a naive reader would make of them: it
// looks at all Pods anew after each change and remembers nothing but the last
// good record of each.
type world struct {
	pods []*corev1.Pod // nil where there is none
	last []string      // worker_id that the Pod last claimed; "" for none
	made int
}

// play makes one change to a Pod, and says what it would be in a watch.
func (w *world) play(i int, op byte, arg int) (watch.EventType, *corev1.Pod) {
	p := w.pods[i]
	if p == nil {
		w.made++
		p = testfleet.WorkerPod(namespace, fmt.Sprintf("p%d", i), deployment, "")
		p.UID = types.UID(fmt.Sprintf("uid-%02d", w.made))
		p.CreationTimestamp = metav1.Time{Time: time.Unix(int64(1000-w.made%3), 0)}
		w.pods[i], w.last[i] = p, ""
		return watch.Added, p
	}
	p = p.DeepCopy()
	w.pods[i] = p
	switch op % 9 {
	case 0:
		w.pods[i], w.last[i] = nil, ""
		return watch.Deleted, p
	case 1, 2:
		p.Annotations = map[string]string{wire.Annotation: record(fmt.Sprintf("10.0.0.%d:30000", arg%3))}
	case 3:
		p.Annotations = map[string]string{wire.Annotation: []string{"{", `{"url":1}`, record(a, `,"status":"bogus"`)}[arg%3]}
	case 4:
		p.Annotations = nil
	case 5:
		testfleet.SetReady(p, arg%2 == 0)
	case 6:
		[]func(*corev1.Pod){crash, backOff, restart}[arg%3](p)
	case 7:
		testfleet.Terminate(p)
	case 8:
		p.Status.Phase = []corev1.PodPhase{corev1.PodRunning, corev1.PodPending, corev1.PodFailed}[arg%3]
	}
	return watch.Modified, p
}

// claim is what a Pod says for itself: "" and whatever for nothing.
func (w *world) claim(i int) (id string, status fleet.Status) {
	p := w.pods[i]
	defer func() { w.last[i] = id }()
	if p == nil || p.Status.Phase != corev1.PodRunning {
		return "", 0
	}
	worker, _ := wire.DecodeRegistration("", []byte(p.Annotations[wire.Annotation]))
	gone := p.DeletionTimestamp != nil
	state := p.Status.ContainerStatuses[0].State
	switch {
	case worker != nil:
		id, status = worker.ID, worker.Status
	case gone && p.Annotations[wire.Annotation] == "":
		id = w.last[i]
	}
	switch {
	case gone && state.Terminated != nil:
		return "", 0
	case gone:
		return id, fleet.Draining
	case state.Running == nil:
		return id, fleet.Dead
	case !p.Status.ContainerStatuses[0].Ready:
		return id, fleet.Draining
	}
	return id, status
}

type said struct {
	status  fleet.Status
	created int64
	uid     string
}

func (s said) before(b said) bool {
	if s.status != b.status {
		return s.status == fleet.Active || b.status == fleet.Dead
	}
	if s.created != b.created {
		return s.created < b.created
	}
	return s.uid < b.uid
}

// fleet is what all Pods say, as "id status uid": per id the best off, then the
// oldest.
func (w *world) fleet() []string {
	best := map[string]said{}
	for i, p := range w.pods {
		id, status := w.claim(i)
		if id == "" {
			continue
		}
		s := said{status, p.CreationTimestamp.Unix(), string(p.UID)}
		if b, ok := best[id]; !ok || s.before(b) {
			best[id] = s
		}
	}
	var out []string
	for id, s := range best {
		out = append(out, fmt.Sprintf("%s %v %s", id, s.status, s.uid))
	}
	slices.Sort(out)
	return out
}

// render shows workers as fleet does.
func render(workers []*fleet.Worker) []string {
	var out []string
	for _, w := range workers {
		var uid string
		fmt.Sscanf(w.Incarnation, "pod %s", &uid)
		out = append(out, fmt.Sprintf("%s %v %s", w.ID, w.Status, uid))
	}
	return out
}

// FuzzPodsAgainstAModel plays changes of Pods, watched, missed and listed, and
// compares the fleet with the naive reader's after each.
func FuzzPodsAgainstAModel(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 7, 0, 0, 0, 0})          // D5
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 1, 2, 0, 3, 0, 0, 0, 0})          // D6
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 7, 0, 0, 4, 0, 0, 6, 0, 0, 0, 0})          // D13
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 6, 0, 0, 6, 1, 0, 6, 2, 0, 5, 1, 0, 5, 0}) // D4
	f.Add([]byte{0, 0, 0, 0, 3, 2, 3, 0, 0, 0, 3, 1, 7, 1, 1, 0, 8, 2, 0, 8, 0})
	f.Fuzz(func(t *testing.T, ops []byte) {
		const count = 4
		w := &world{pods: make([]*corev1.Pod, count), last: make([]string, count)}
		store := new(fleet.Store)
		src := &Source{cfg: DefaultConfig(), log: slog.New(slog.DiscardHandler), metrics: newMetrics()}
		fo := newFollower(src, fleet.NewFeed(store))
		for ; len(ops) >= 3; ops = ops[3:] {
			kind, p := w.play(int(ops[0])%count, ops[1], int(ops[2]))
			want := w.fleet()
			if ops[0]&0x80 != 0 { // the change was missed, and a listing makes up for it
				var all []*corev1.Pod
				for _, p := range w.pods {
					if p != nil {
						all = append(all, p)
					}
				}
				fo.note(t.Context(), fo.table.replace(all))
				fo.feed.Replace(fo.table.workers())
			} else if kind == watch.Deleted {
				fo.Remove(t.Context(), p)
			} else {
				fo.Put(t.Context(), p)
			}
			if got := render(store.Snapshot().Workers); !slices.Equal(got, want) {
				t.Fatalf("after %s of %s: fleet %q, want %q", kind, p.Name, got, want)
			}
			if got := render(fo.table.workers()); !slices.Equal(got, want) {
				t.Fatalf("after %s of %s: table %q, want %q", kind, p.Name, got, want)
			}
		}
	})
}

// FuzzAnnotation: whatever a Pod's annotation holds, it claims a usable worker or
// nothing, and never touches another Pod's.
func FuzzAnnotation(f *testing.F) {
	f.Add(record("10.0.0.3:30000"))
	f.Add(record(a, `,"status":"draining"`))
	f.Add("null")
	f.Add(`{"worker_id":"x","url":"http://h","dp_size":-1}`)
	f.Add("\xff")
	f.Fuzz(func(t *testing.T, value string) {
		tb := newTable(DefaultConfig())
		good := testfleet.WorkerPod(namespace, "good", deployment, record(a))
		good.UID, good.CreationTimestamp = "good", metav1.Time{Time: time.Unix(1, 0)}
		odd := testfleet.WorkerPod(namespace, "odd", deployment, value)
		odd.UID, odd.CreationTimestamp = "odd", metav1.Time{Time: time.Unix(2, 0)}
		tb.put(good)
		c := tb.put(odd)
		if w := tb.worker(a); w == nil || w.Status != fleet.Active || w.Incarnation != "pod good container containerd://good-0" {
			t.Fatalf("the other Pod's worker is %+v", w)
		}
		if id := c.now.id(); id != "" && (tb.worker(id) == nil || c.now.worker.URL == "") {
			t.Fatalf("claims %q without a worker", id)
		}
		again := tb.put(odd)
		if again.now.id() != c.now.id() || again.now.state != c.now.state {
			t.Fatalf("%+v, and the second time %+v", c.now, again.now)
		}
		tb.remove(odd)
		if got := len(tb.workers()); got != 1 {
			t.Fatalf("%d workers after its end, want 1", got)
		}
	})
}
