package simengine_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"pointsman/fleet"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
	"pointsman/wire"
)

// cluster is an API server with the worker's Pod, which has no record.
type cluster struct {
	*testfleet.Kube
	client    *http.Client
	token, ca string // files
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Kube: testfleet.StartKube(t)}
	dir := t.TempDir()
	c.token, c.ca = filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	for file, content := range map[string][]byte{c.token: []byte(c.Token + "\n"), c.ca: c.CA} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.CA)
	c.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	c.PutPod(t, testfleet.WorkerPod("models", "w-0", "qwen", ""))
	return c
}

// start starts an engine that registers at the Pod.
func (c *cluster) start(t *testing.T, edit func(*simengine.Config)) *simengine.Engine {
	t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.Kube = simengine.KubeConfig{
		API: c.URL, TokenFile: c.token, CAFile: c.ca, Namespace: "models", Pod: "w-0", Refresh: 20 * time.Millisecond,
	}
	if edit != nil {
		edit(&cfg)
	}
	e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	return e
}

// annotated returns the Pod's annotation, and the Pod's version.
func (c *cluster) annotated(t *testing.T) (record, version string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/api/v1/namespaces/models/pods/w-0", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var p corev1.Pod
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	return p.Annotations[wire.Annotation], p.ResourceVersion
}

func await(t *testing.T, e *simengine.Engine) {
	t.Helper()
	select {
	case <-e.Registered():
	case <-time.After(20 * time.Second):
		t.Fatal("never registered")
	}
}

func TestTheAnnotationIsWhatARouterReads(t *testing.T) {
	c := startCluster(t)
	e := c.start(t, func(cfg *simengine.Config) {
		cfg.Engine, cfg.Role, cfg.Cache.BlockSize = fleet.SGLang, fleet.Decode, 32
		cfg.ForwarderEndpoint, cfg.KV.ReplayPort, cfg.AdvertiseHost = "127.0.0.1:8000", 0, "localhost"
	})
	await(t, e)
	got, _ := c.annotated(t)
	want, err := wire.EncodeRegistration(e.Worker())
	if err != nil || got != string(want) {
		t.Fatalf("annotation\n%s\nwant\n%s (%v)", got, want, err)
	}
	w, err := wire.DecodeRegistration("", []byte(got))
	if err != nil {
		t.Fatal(err)
	}
	if w.ID != e.ID() || w.Host != "localhost" || w.Engine != fleet.SGLang || w.Role != fleet.Decode || w.BlockSize != 32 ||
		w.KVEvents != e.KVEvents() || w.KVReplay != e.KVReplay() || w.Endpoint != "127.0.0.1:8000" {
		t.Errorf("read as %+v", w)
	}
	if code := get(t, w.URL+"/health"); code != http.StatusOK {
		t.Errorf("the registered URL answers %d", code)
	}
}

func TestTheAnnotationComesOnceRequestsAreTaken(t *testing.T) {
	broker := testfleet.StartNATS(t, nil)
	broker.Stop(t)
	c := startCluster(t)
	var log testkit.Log
	e := c.start(t, func(cfg *simengine.Config) {
		cfg.NATS.Server, cfg.Log = broker.URL, log.Logger()
	})
	testkit.Until(t, "an attempt to reach the broker", func() bool { return log.Count("nats broker not reached") > 0 })
	if record, _ := c.annotated(t); record != "" || c.Requests("patch") != 0 {
		t.Errorf("it cannot take requests yet, and is annotated after %d patches: %q", c.Requests("patch"), record)
	}
	broker.Start(t)
	await(t, e)
	select {
	case <-e.Subscribed():
	default:
		t.Error("registered before it subscribed")
	}
	record, _ := c.annotated(t)
	if w, err := wire.DecodeRegistration("", []byte(record)); err != nil || w.Transport != "nats" {
		t.Errorf("%q, %v", record, err)
	}
}

func TestTheAnnotationIsAssertedAgain(t *testing.T) {
	c := startCluster(t)
	await(t, c.start(t, nil))
	record, version := c.annotated(t)
	seen := c.Requests("patch")
	testkit.Until(t, "three more patches", func() bool { return c.Requests("patch") >= seen+3 })
	if _, now := c.annotated(t); now != version {
		t.Errorf("patches that say the same make version %s of %s", now, version)
	}
	c.Patch(t, testfleet.KubePods, "models", "w-0", `{"metadata":{"annotations":{"infera.amd.com/worker-info":null,"other":"stays"}}}`)
	testkit.Until(t, "the annotation again", func() bool { now, _ := c.annotated(t); return now == record })
}

func TestTheDrainClearsTheAnnotationFirst(t *testing.T) {
	c := startCluster(t)
	e := c.start(t, nil)
	await(t, e)
	stream := slowStream(t, e.URL(), 50) // half a second
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(context.WithoutCancel(t.Context())) }()
	testkit.Until(t, "the annotation gone", func() bool { record, _ := c.annotated(t); return record == "" })
	select {
	case err := <-drained:
		t.Fatalf("ended while a stream ran: %v", err)
	default:
	}
	if code := get(t, e.URL()+"/health"); code != http.StatusOK { // it still serves
		t.Errorf("health %d while draining", code)
	}
	rest, err := io.ReadAll(stream)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream was cut by the drain: %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if record, _ := c.annotated(t); record != "" { // many refreshes later
		t.Errorf("annotated again: %s", record)
	}
}

// TestARefreshOnItsWayDoesNotUndoTheDrain has a server that carries out what it
// has received, however the client fares.
func TestARefreshOnItsWayDoesNotUndoTheDrain(t *testing.T) {
	var hold atomic.Bool
	held, release, cleared := make(chan struct{}), make(chan struct{}), make(chan struct{})
	applied := make(chan string, 100)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.HasSuffix(string(body), ":null}}}") {
			close(cleared)
		} else if hold.CompareAndSwap(true, false) {
			close(held)
			<-release
		}
		applied <- string(body)
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(api.Close)
	cfg := simengine.DefaultConfig()
	cfg.Kube = simengine.KubeConfig{API: api.URL, Namespace: "models", Pod: "w-0", Refresh: 20 * time.Millisecond}
	e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	await(t, e)
	hold.Store(true)
	<-held
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(context.WithoutCancel(t.Context())) }()
	select {
	case <-cleared:
		t.Error("cleared while a refresh is on its way")
	case <-time.After(100 * time.Millisecond):
	}
	close(release)
	if err := <-drained; err != nil {
		t.Error(err)
	}
	last := ""
	for len(applied) > 0 {
		last = <-applied
	}
	if !strings.HasSuffix(last, ":null}}}") {
		t.Errorf("left behind: %s", last)
	}
}

func TestKillLeavesTheAnnotation(t *testing.T) {
	c := startCluster(t)
	e := c.start(t, nil)
	await(t, e)
	e.Kill()
	if record, _ := c.annotated(t); record == "" {
		t.Error("the annotation went with the process")
	}
}

func TestADrainWithoutItsPodOrItsServer(t *testing.T) {
	t.Run("a Pod that is gone needs no clearing", func(t *testing.T) {
		c := startCluster(t)
		e := c.start(t, nil)
		await(t, e)
		c.Delete(t, testfleet.KubePods, "models", "w-0")
		if err := e.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("a server that is away is told of, and the drain goes on", func(t *testing.T) {
		c := startCluster(t)
		e := c.start(t, nil)
		await(t, e)
		stream := slowStream(t, e.URL(), 20)
		c.Stop()
		if err := e.Drain(t.Context()); err == nil || !strings.Contains(err.Error(), "models/w-0") {
			t.Errorf("error %v does not name the Pod", err)
		}
		if rest, err := io.ReadAll(stream); err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
			t.Errorf("the stream was cut: %v", err)
		}
	})
}

func TestTheRegistrationWaitsForTheServer(t *testing.T) {
	c := startCluster(t)
	c.Stop()
	var log testkit.Log
	e := c.start(t, func(cfg *simengine.Config) { cfg.Log = log.Logger() })
	testkit.Until(t, "a failure", func() bool { return log.Count("registration failed") > 0 })
	if code := get(t, e.URL()+"/health"); code != http.StatusOK {
		t.Errorf("health %d", code)
	}
	c.Start(t)
	await(t, e)
	// And later: what is lost in an outage is made up for after it.
	record, _ := c.annotated(t)
	c.Stop()
	testkit.Until(t, "a failure", func() bool { return log.Count("annotation not refreshed") > 0 })
	c.Patch(t, testfleet.KubePods, "models", "w-0", `{"metadata":{"annotations":null}}`)
	c.Start(t)
	testkit.Until(t, "the annotation again", func() bool { now, _ := c.annotated(t); return now == record })
}

func TestRefusalsAreToldAndTriedAgain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, want string
		change     func(t *testing.T, c *cluster, mend bool)
	}{
		{"no permission", "403", permission},
		{"no such Pod yet", "404", presence},
		{"a token that has expired is read anew", "401", expiry},
		{"no token yet", "token: ", tokenFile},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t)
			tc.change(t, c, false)
			var log testkit.Log
			e := c.start(t, func(cfg *simengine.Config) { cfg.Log = log.Logger() })
			testkit.Until(t, "a failure", func() bool { return log.Count("registration failed") > 0 })
			if log.Count(tc.want) == 0 {
				t.Errorf("the log does not speak of %s", tc.want)
			}
			tc.change(t, c, true)
			await(t, e)
			if record, _ := c.annotated(t); record == "" {
				t.Error("registered, but not there")
			}
		})
	}
}

func permission(t *testing.T, c *cluster, mend bool) {
	t.Helper()
	if mend {
		c.Allow(testfleet.KubePods, "patch")
	} else {
		c.Deny(testfleet.KubePods, "patch")
	}
}

func presence(t *testing.T, c *cluster, mend bool) {
	t.Helper()
	if mend {
		c.PutPod(t, testfleet.WorkerPod("models", "w-0", "qwen", ""))
	} else {
		c.Delete(t, testfleet.KubePods, "models", "w-0")
	}
}

func expiry(t *testing.T, c *cluster, mend bool) {
	t.Helper()
	token := "old"
	if mend {
		token = c.Token
	}
	write(t, c.token, token)
}

func tokenFile(t *testing.T, c *cluster, mend bool) {
	t.Helper()
	if mend {
		write(t, c.token, c.Token)
	} else if err := os.Remove(c.token); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherServersCertificateIsRefused(t *testing.T) {
	c := startCluster(t)
	var log testkit.Log
	e := c.start(t, func(cfg *simengine.Config) { cfg.Kube.CAFile, cfg.Log = "", log.Logger() })
	testkit.Until(t, "a failure", func() bool { return log.Count("certificate signed by unknown authority") > 0 })
	select {
	case <-e.Registered():
		t.Error("registered at a stranger")
	default:
	}
	if n := c.Requests("patch"); n != 0 {
		t.Errorf("%d patches, and the token, went to a stranger", n)
	}
}

func TestWhatIsNoRegistrationAtAPod(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "ca.crt")
	write(t, empty, "none")
	for name, edit := range map[string]func(*simengine.Config){
		"give both names":           func(c *simengine.Config) { c.Kube.Pod = "" },
		"in namespace":              func(c *simengine.Config) { c.Kube.Namespace = "" },
		"give a URL":                func(c *simengine.Config) { c.Kube.API = "ftp://h" },
		"refresh of":                func(c *simengine.Config) { c.Kube.Refresh = 0 },
		"give one of them":          func(c *simengine.Config) { c.Etcd.Endpoint = "h:1" },
		"no such file or directory": func(c *simengine.Config) { c.Kube.CAFile = empty + "s" },
		"none in " + empty:          func(c *simengine.Config) { c.Kube.CAFile = empty },
	} {
		cfg := simengine.DefaultConfig()
		cfg.Kube.API, cfg.Kube.Namespace, cfg.Kube.Pod = "https://h:1", "models", "w-0"
		edit(&cfg)
		e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
		if err == nil {
			e.Kill()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not in %v", name, err)
		}
	}
}
