package inferencepool

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
)

func TestEachPodAndPortIsAnEndpoint(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000, 8001))
	a := pod("a", "llama", "10.0.0.1")
	w.PutPod(t, a)
	w.PutPod(t, pod("other", "qwen", "10.0.0.9"))
	cfg := w.config()
	cfg.BlockSize, cfg.KVEventsPort = 16, 5556
	w.follow(cfg)
	w.Want("the listing", "10.0.0.1:8000 active", "10.0.0.1:8001 active")
	if err := w.source.Waiting(); err != nil {
		t.Errorf("waits: %v", err)
	}
	x := w.worker("10.0.0.1:8001")
	if x.URL != "http://10.0.0.1:8001" || x.Endpoint != "10.0.0.1:8001" || x.Model != "m" || x.BlockSize != 16 || x.KVEvents != "tcp://10.0.0.1:5557" ||
		x.Transport != "http" || x.Role != fleet.Mixed || x.Ranks() != 1 || !strings.HasPrefix(x.Incarnation, "pod ") {
		t.Errorf("got %+v", x)
	}

	b := pod("b", "llama", "fd00::2")
	w.PutPod(t, b)
	w.Want("a Pod that comes", "10.0.0.1:8000 active", "10.0.0.1:8001 active", "[fd00::2]:8000 active", "[fd00::2]:8001 active")
	w.EditPod(t, a, testfleet.Readiness(false))
	w.Want("one that is not Ready", "10.0.0.1:8000 draining", "10.0.0.1:8001 draining", "[fd00::2]:8000 active", "[fd00::2]:8001 active")
	w.EditPod(t, a, testfleet.Readiness(true))
	w.EditPod(t, b, testfleet.Terminate)
	w.Want("one that is deleted", "10.0.0.1:8000 active", "10.0.0.1:8001 active", "[fd00::2]:8000 draining", "[fd00::2]:8001 draining")
	w.Delete(t, testfleet.KubePods, namespace, "b")
	w.Want("its end", "10.0.0.1:8000 active", "10.0.0.1:8001 active")
	w.EditPod(t, a, func(p *corev1.Pod) { p.Annotations = map[string]string{activePorts: " 8001, 9999,x"} })
	w.Want("ports that are not active", "10.0.0.1:8001 active")
	w.EditPod(t, a, func(p *corev1.Pod) { p.Annotations = nil })
	w.Want("all of them again", "10.0.0.1:8000 active", "10.0.0.1:8001 active")
	w.EditPod(t, a, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	w.Want("a Pod that has failed")
	if got := testutil.ToFloat64(w.source.metrics.pods.WithLabelValues("ended")); got != 1 {
		t.Errorf("%v ended Pods, want 1", got)
	}
}

func TestPrefillPodsOfLLMDServeNoRequestsOfTheirOwn(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	for i, role := range []string{"", "prefill", "decode", "prefill-decode"} {
		p := pod("p"+strconv.Itoa(i), "llama", "10.0.0."+strconv.Itoa(i))
		if role != "" {
			p.Labels[roleLabel] = role
		}
		w.PutPod(t, p)
	}
	w.follow(w.config())
	w.Want("the listing", "10.0.0.0:8000 active", "10.0.0.1:8000 active", "10.0.0.2:8000 active", "10.0.0.3:8000 active")
	for _, x := range w.Store.Snapshot().Workers {
		if want := x.ID == "10.0.0.1:8000"; (x.Role == fleet.Prefill) != want {
			t.Errorf("%s is %v", x.ID, x.Role)
		}
	}
}

func TestEightTargetPorts(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 1, 2, 3, 4, 5, 6, 7, 8))
	w.PutPod(t, pod("a", "llama", "10.0.0.1"))
	w.follow(w.config())
	w.Until("eight endpoints", func() bool { return len(w.Statuses()) == 8 })
}

func TestAnotherSelectorAndOtherPortsMeanANewListing(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	w.PutPod(t, pod("a", "llama", "10.0.0.1"))
	w.PutPod(t, pod("b", "qwen", "10.0.0.2"))
	w.follow(w.config())
	w.Want("the listing", "10.0.0.1:8000 active")
	w.Put(t, pools, pool("qwen", 8000))
	w.Want("the other selector", "10.0.0.2:8000 active")
	w.Put(t, pools, pool("qwen", 8100))
	w.Want("the other port", "10.0.0.2:8100 active")
	before := w.Requests("list")
	changed := pool("qwen", 8100)
	changed["metadata"].(object)["labels"] = object{"x": "y"}
	w.Put(t, pools, changed)
	w.PutPod(t, pod("c", "qwen", "10.0.0.3"))
	w.Want("what comes after a change that changes nothing", "10.0.0.2:8100 active", "10.0.0.3:8100 active")
	if got := w.Requests("list"); got > before+4 { // the optional resources are looked for again
		t.Errorf("%d further listings", got-before)
	}
	w.Put(t, pools, pool("nobody", 8100))
	w.Want("a selector that matches nothing")
	if err := w.source.Waiting(); err != nil {
		t.Errorf("waits: %v; an empty pool is known", err)
	}
}

func TestAPoolThatDoesNotExistIsWaitedFor(t *testing.T) {
	w := newCluster(t)
	w.PutPod(t, pod("a", "llama", "10.0.0.1"))
	w.follow(w.config())
	w.Until("the complaint", func() bool { return w.Log.Count("the InferencePool does not exist; waiting for it") == 1 })
	if err := w.source.Waiting(); err == nil || !strings.Contains(err.Error(), "serving/llama-pool does not exist") {
		t.Errorf("waits for %v", err)
	}
	if w.Store.Synced() {
		t.Error("a fleet is known without a pool")
	}
	w.Put(t, pools, pool("llama", 8000))
	w.Want("its coming", "10.0.0.1:8000 active")
	if err := w.source.Waiting(); err != nil {
		t.Errorf("waits for %v", err)
	}
	w.Delete(t, pools, namespace, poolName)
	w.Want("its end")
	if w.source.Waiting() == nil {
		t.Error("does not wait for the pool that is gone")
	}
	w.Put(t, pools, pool("llama", 8001))
	w.Want("its return", "10.0.0.1:8001 active")
}

func TestWhatIsMissingIsSaidAndWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil, mend func(*world)
		want        string
	}{
		"the CRD": {
			func(*world) {}, func(w *world) { w.Install(pools) }, "inferencepools.inference.networking.k8s.io in namespace",
		},
		"the role": {
			func(w *world) { w.Install(pools); w.Deny(pools, "list") }, func(w *world) { w.Allow(pools, "list") },
			"--verb=get,list,watch --resource=inferencepools.inference.networking.k8s.io",
		},
		"a usable spec": {
			func(w *world) { w.Install(pools); w.Put(w.t, pools, pool("llama")) }, func(*world) {}, "no target ports",
		},
		"a selector": {
			func(w *world) {
				w.Install(pools)
				p := pool("llama", 8000)
				p["spec"].(object)["selector"] = object{}
				w.Put(w.t, pools, p)
			}, func(*world) {}, "no selector",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{Kube: testfleet.StartKube(t), t: t}
			tc.spoil(w)
			w.PutPod(t, pod("a", "llama", "10.0.0.1"))
			w.follow(w.config())
			w.Until("what is waited for", func() bool {
				err := w.source.Waiting()
				return err != nil && strings.Contains(err.Error(), tc.want)
			})
			w.Until("that it is said", func() bool { return w.Log.Count("level=WARN msg=\"the InferencePool cannot be") == 1 })
			tc.mend(w)
			w.Put(t, pools, pool("llama", 8000))
			w.Want("the mending", "10.0.0.1:8000 active")
		})
	}
}

func TestARecordSaysWhatTheWorkerIs(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	w.PutPod(t, registered(pod("a", "llama", "10.0.0.1"), record("10.0.0.1:30000", `,"disagg_mode":"prefill"`)))
	w.PutPod(t, registered(pod("b", "llama", "10.0.0.2"), `{"worker_id":7}`))
	w.follow(w.config())
	w.Want("the listing", "10.0.0.1:30000 active", "10.0.0.2:8000 active")
	x := w.worker("10.0.0.1:30000")
	if x.Model != "llama" || x.Role != fleet.Prefill || x.Endpoint != "10.0.0.1:8000" || x.URL != "http://10.0.0.1:30000" || x.BlockSize != 32 || x.DPRank != -1 ||
		!strings.HasSuffix(x.Incarnation, "container containerd://a-0") {
		t.Errorf("got %+v", x)
	}
	if x := w.worker("10.0.0.2:8000"); x.Model != "m" {
		t.Errorf("the Pod with an unusable record is %+v", x)
	}
	if got := w.Store.Skipped()["worker_id"]; got != 1 {
		t.Errorf("%d records skipped, want 1", got)
	}
}

func TestARecordOnAPodOfSeveralPortsIsOfOneRank(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000, 8001))
	w.PutPod(t, registered(pod("a", "llama", "10.0.0.1"), record("w-a", `,"url":"http://10.0.0.1:8001"`)))
	w.follow(w.config())
	w.Want("the listing", "10.0.0.1:8000 active", "w-a active")
	own, other := w.worker("w-a"), w.worker("10.0.0.1:8000")
	if own.Endpoint != "10.0.0.1:8001" || own.DPRank != 1 || own.DPSize != 2 || own.KVEvents != "tcp://10.0.0.1:5558" {
		t.Errorf("its own port: %+v", own)
	}
	if other.Endpoint != "10.0.0.1:8000" || other.DPRank != 0 || other.Model != "llama" || other.KVEvents != "tcp://10.0.0.1:5557" || other.URL != "http://10.0.0.1:8000" {
		t.Errorf("the other: %+v", other)
	}
}

func TestASelectorDoesWithoutAPool(t *testing.T) {
	w := &world{Kube: testfleet.StartKube(t), t: t}
	w.PutPod(t, pod("a", "llama", "10.0.0.1"))
	cfg := w.config()
	cfg.Pool, cfg.Selector, cfg.Ports = "", "app in (llama)", []int{8000, 8001}
	w.follow(cfg)
	w.Want("the listing", "10.0.0.1:8000 active", "10.0.0.1:8001 active")
	if w.source.Waiting() != nil || w.Requests("list") != 1 {
		t.Errorf("waits %v, %d listings, want the Pods' alone", w.source.Waiting(), w.Requests("list"))
	}
}

func TestEndpointsTellTheirModels(t *testing.T) {
	var asked atomic.Int32
	var mute atomic.Bool
	mute.Store(true)
	at := engine(t, func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if mute.Load() {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.URL.Path != "/v1/models" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		_, _ = io.WriteString(rw, `{"object":"list","data":[{"id":"llama","owned_by":"vllm"},{"id":"alias","owned_by":"vllm"},{"id":"sql","parent":"llama"}]}`)
	})
	w := newCluster(t)
	w.Put(t, pools, pool("llama", int(at.Port())))
	w.PutPod(t, pod("a", "llama", "127.0.0.1"))
	cfg := w.config()
	cfg.Model, cfg.Refresh = "", 50*time.Millisecond
	w.follow(cfg)
	id := at.String()
	w.Want("the listing", id+" active")
	if x := w.worker(id); x.Model != "" || !x.Serves("anything") {
		t.Errorf("before it has told: %+v", x)
	}
	mute.Store(false)
	w.Until("its model", func() bool { return w.worker(id).Model == "llama" })
	if x := w.worker(id); x.Engine != fleet.VLLM || strings.Join(x.Names(nil), " ") != "llama alias sql" || x.Serves("anything") {
		t.Errorf("got %+v", x)
	}
	n := asked.Load()
	w.Until("that it is asked again", func() bool { return asked.Load() > n+1 })
	mute.Store(true)
	n = asked.Load()
	w.Until("a failure", func() bool { return asked.Load() > n })
	if x := w.worker(id); x.Model != "llama" {
		t.Errorf("a failed question made it forget: %+v", x)
	}
}

func TestReadModels(t *testing.T) {
	for _, tc := range []struct{ name, body, want, err string }{
		{"vLLM's", `{"data":[{"id":"m","owned_by":"vllm"},{"id":"l","parent":"m"}]}`, "m [] [l] vllm", ""},
		{"an engine that is not known", `{"data":[{"id":"m","owned_by":"me"}]}`, "m [] [] ", ""},
		{"adapters first", `{"data":[{"id":"l","parent":"m"},{"id":"m"},{"id":"b"},{"id":"a"}]}`, "m [a b] [l] ", ""},
		{"none", `{"data":[]}`, "", "no model is listed"},
		{"an endless name", `{"data":[{"id":"` + strings.Repeat("m", maxName+1) + `"}]}`, "", "no model is listed"},
		{"no JSON", `<html>`, "", "invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := readModels([]byte(tc.body))
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			if err != nil {
				return
			}
			got := a.model + " [" + strings.Join(a.aliases, " ") + "] [" + strings.Join(a.adapters, " ") + "] " + string(a.engine)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestAnEndpointsAnswerIsBounded(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"too long": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, strings.Repeat(" ", maxAnswer+1))
		},
		"too late": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"elsewhere": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "http://127.0.0.1:1/", http.StatusFound)
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := engine(t, handler)
			c := client(false)
			defer c.CloseIdleConnections()
			if a, err := models(t.Context(), c, "http://"+at.String(), 100*time.Millisecond); err == nil {
				t.Errorf("got %+v", a)
			}
		})
	}
}

func TestObjectivesAndRewritesOfBothGroups(t *testing.T) {
	for _, group := range intentGroups() {
		t.Run(group, func(t *testing.T) {
			w := newCluster(t)
			w.Put(t, pools, pool("llama", 8000))
			objective, rewrite := intent(group, intentKinds()[0]), intent(group, intentKinds()[1])
			w.Install(objective)
			w.Install(rewrite)
			ref := object{"name": poolName, "group": poolGroup, "kind": "InferencePool"}
			named := func(name string) object { return object{"namespace": namespace, "name": name} }
			w.Put(t, objective, object{"metadata": named("batch"), "spec": object{"priority": -5, "poolRef": ref}})
			w.Put(t, objective, object{"metadata": named("plain"), "spec": object{"poolRef": ref}})
			w.Put(t, objective, object{"metadata": named("others"), "spec": object{"priority": 9, "poolRef": object{"name": "other"}}})
			w.Put(t, rewrite, object{"metadata": named("canary"), "spec": object{"poolRef": ref, "rules": []object{
				{"matches": []object{{"model": object{"type": "Exact", "value": "public"}}}, "targets": []object{{"modelRewrite": "v2", "weight": 1}}},
				{"matches": []object{{"model": object{"type": "Regex", "value": ".*"}}}, "targets": []object{{"modelRewrite": "v9", "weight": 1}}},
			}}})
			w.follow(w.config())
			book := w.source.Objectives()
			w.Until("the rewrite", func() bool {
				to, by, ok := book.Rewritten("public", 0)
				return ok && to == "v2" && by == "canary"
			})
			w.Until("the objectives", func() bool {
				p, ok := book.Priority("batch")
				q, also := book.Priority("plain")
				return ok && also && p == -5 && q == 0
			})
			if _, ok := book.Priority("others"); ok {
				t.Error("another pool's objective counts")
			}
			if to, _, ok := book.Rewritten("private", 0); ok {
				t.Errorf("a match of an unknown type rewrote to %q", to)
			}
			w.Put(t, objective, object{"metadata": named("batch"), "spec": object{"priority": 3, "poolRef": ref}})
			w.Until("a change", func() bool { p, _ := book.Priority("batch"); return p == 3 })
			w.Delete(t, rewrite, namespace, "canary")
			w.Until("its end", func() bool { _, _, ok := book.Rewritten("public", 0); return !ok })
		})
	}
}

func TestOptionalResourcesNeverStopTheStart(t *testing.T) {
	w := newCluster(t)
	denied := intent(intentGroups()[0], intentKinds()[0])
	w.Install(denied)
	w.Deny(denied, "list", "watch")
	w.Put(t, pools, pool("llama", 8000))
	w.PutPod(t, pod("a", "llama", "10.0.0.1"))
	w.follow(w.config())
	w.Want("the fleet", "10.0.0.1:8000 active")
	w.Until("that all four are said once", func() bool { return w.Log.Count("an optional resource is not available") == 4 })
	if !w.Store.Connected() || w.source.Waiting() != nil {
		t.Errorf("connected %t, waits for %v", w.Store.Connected(), w.source.Waiting())
	}
	w.Allow(denied, "list", "watch")
	w.Until("that it is found later", func() bool { return w.Log.Count("an optional resource is followed") == 1 })
	if n := w.Log.Count("an optional resource is not available"); n != 4 {
		t.Errorf("said %d times, want 4:\n%s", n, w.Log)
	}
}

func TestAnOutageKeepsTheLastFleet(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	w.PutPod(t, pod("a", "llama", "10.0.0.1"))
	w.follow(w.config())
	w.Want("the listing", "10.0.0.1:8000 active")
	w.Stop()
	w.Until("that it is lost", func() bool { return !w.Store.Connected() })
	if got := w.Statuses(); len(got) != 1 || w.source.Waiting() != nil {
		t.Errorf("fleet %v, waits for %v", got, w.source.Waiting())
	}
	w.Start(t)
	w.PutPod(t, pod("b", "llama", "10.0.0.2"))
	w.Want("its recovery", "10.0.0.1:8000 active", "10.0.0.2:8000 active")
	w.Until("that it is in step", w.Store.Connected)
}

func TestThePoolsOtherPickerPortIsSaid(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	cfg := w.config()
	cfg.PickerPort = 9100
	w.follow(cfg)
	w.Until("the warning", func() bool { return w.Log.Count("names another port for its endpoint picker") == 1 })
	if got := testutil.ToFloat64(w.source.metrics.port); got != 1 {
		t.Errorf("the gauge of it is %v", got)
	}
	mended := pool("llama", 8000)
	mended["spec"].(object)["endpointPickerRef"].(object)["port"] = object{"number": 9100}
	w.Put(t, pools, mended)
	w.Until("that it is mended", func() bool { return testutil.ToFloat64(w.source.metrics.port) == 0 })
}

// security S4: the first of two Pods that claim one worker stays, and it is told once.
func TestTwoPodsOfOneActiveWorker(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	w.PutPod(t, pod("old", "llama", "10.0.0.1"))
	w.follow(w.config())
	w.Want("the first", "10.0.0.1:8000 active")
	before := w.worker("10.0.0.1:8000").Incarnation
	thief := pod("thief", "llama", "10.0.0.1")
	thief.CreationTimestamp = metav1.Time{Time: metav1.Now().Add(60e9)}
	w.PutPod(t, thief)
	w.PutPod(t, pod("third", "llama", "10.0.0.3"))
	w.Want("what came behind it", "10.0.0.1:8000 active", "10.0.0.3:8000 active")
	if got := w.worker("10.0.0.1:8000").Incarnation; got != before || w.Store.Conflicts() != 1 || w.Log.Count("several Pods claim") != 1 {
		t.Errorf("served by %s instead of %s; %d conflicts", got, before, w.Store.Conflicts())
	}
}

func TestTwoPodsOfOneAddress(t *testing.T) {
	w := newCluster(t)
	w.Put(t, pools, pool("llama", 8000))
	old := pod("old", "llama", "10.0.0.1")
	w.PutPod(t, old)
	w.follow(w.config())
	w.Want("the first", "10.0.0.1:8000 active")
	before := w.worker("10.0.0.1:8000").Incarnation
	w.EditPod(t, old, testfleet.Terminate)
	w.PutPod(t, pod("new", "llama", "10.0.0.1"))
	w.Until("that the new one counts", func() bool {
		x := w.worker("10.0.0.1:8000")
		return x.Status == fleet.Active && x.Incarnation != before
	})
	w.Delete(t, testfleet.KubePods, namespace, "old")
	w.PutPod(t, pod("third", "llama", "10.0.0.3"))
	w.Want("that it stays", "10.0.0.1:8000 active", "10.0.0.3:8000 active")
}

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"a pool", Config{Pool: "p"}, ""},
		{"a selector", Config{Selector: "a=b", Ports: []int{1}}, ""},
		{"neither", Config{}, "--pool-name"},
		{"a selector without ports", Config{Selector: "a=b"}, "--endpoint-target-ports"},
		{"ports without a selector", Config{Pool: "p", Ports: []int{1}}, "without --endpoint-selector"},
		{"a selector that is none", Config{Selector: "((", Ports: []int{1}}, `selector "(("`},
		{"a name that is none", Config{Pool: "a/b"}, `pool name "a/b"`},
		{"nine ports", Config{Selector: "a=b", Ports: []int{1, 2, 3, 4, 5, 6, 7, 8, 9}}, "at most 8"},
		{"a port twice", Config{Selector: "a=b", Ports: []int{1, 1}}, "twice"},
		{"no port", Config{Selector: "a=b", Ports: []int{70000}}, "no port"},
		{"a negative block size", Config{Pool: "p", BlockSize: -1}, "block size -1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.cfg.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	s := &Source{metrics: newMetrics()}
	reg := prometheus.NewRegistry()
	if err := s.Register(reg); err != nil {
		t.Fatal(err)
	}
	if s.Register(reg) == nil {
		t.Error("registered twice")
	}
	s.metrics.observe(nil)
	s.metrics.failed("pods", io.EOF)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func FuzzShape(f *testing.F) {
	f.Add(`{"selector":{"matchLabels":{"app":"x"}},"targetPorts":[{"number":8000}]}`)
	f.Add(`{"selector":{"matchLabels":{"a b":"x"}},"targetPorts":[{"number":8000},{"number":8000}]}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, spec string) {
		sh, _, err := shapeOf(poolObject(spec))
		if (err == nil) != (sh != nil) {
			t.Fatalf("shape %v, error %v", sh, err)
		}
		if sh != nil && (sh.selector == "" || len(sh.ports) == 0 || len(sh.ports) > maxPorts) {
			t.Fatalf("a shape that follows what it should not: %+v", sh)
		}
	})
}

func BenchmarkPodChange(b *testing.B) {
	f := newFollower(&Source{metrics: newMetrics(), cfg: Config{Model: "m"}}, fleet.NewFeed(new(fleet.Store)))
	h := &podHandler{follower: f, shape: &shape{ports: []int{8000}}}
	var all []*corev1.Pod
	for i := range 1000 {
		p := pod("w"+strconv.Itoa(i), "a", "10.0."+strconv.Itoa(i/250)+"."+strconv.Itoa(i%250))
		all = append(all, p)
	}
	h.Replace(b.Context(), all)
	ready := true
	b.ReportAllocs()
	for b.Loop() {
		ready = !ready
		testfleet.SetReady(all[500], ready)
		h.Put(b.Context(), all[500])
	}
}
