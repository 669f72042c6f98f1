package simengine_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"pointsman/fleet"
	"pointsman/internal/simengine"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// registered starts an engine that registers in etcd and waits until it has.
func registered(t *testing.T, endpoint string, edit func(*simengine.Config)) *simengine.Engine {
	t.Helper()
	cfg := simengine.DefaultConfig()
	cfg.Etcd.Endpoint = endpoint
	if edit != nil {
		edit(&cfg)
	}
	e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	select {
	case <-e.Registered():
	case <-t.Context().Done():
		t.Fatal("never registered")
	}
	return e
}

// record returns the value and lease of a worker's key; nil when it is gone.
func record(t *testing.T, c *clientv3.Client, id string) ([]byte, clientv3.LeaseID) {
	t.Helper()
	resp, err := c.Get(t.Context(), "/infera/workers/"+id)
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return nil, 0
	}
	return resp.Kvs[0].Value, clientv3.LeaseID(resp.Kvs[0].Lease)
}

// watch follows a worker's key from now on.
func watch(t *testing.T, c *clientv3.Client, id string) clientv3.WatchChan {
	t.Helper()
	w := c.Watch(clientv3.WithRequireLeader(t.Context()), "/infera/workers/"+id, clientv3.WithCreatedNotify())
	<-w
	return w
}

// next waits for a change of the key.
func next(t *testing.T, w clientv3.WatchChan) *clientv3.Event {
	t.Helper()
	select {
	case r := <-w:
		if r.Err() != nil || len(r.Events) == 0 {
			t.Fatalf("watch: %v", r.Err())
		}
		return r.Events[0]
	case <-time.After(30 * time.Second):
		t.Fatal("the key does not change")
		return nil
	}
}

func TestRegistrationIsWhatARouterReads(t *testing.T) {
	etcd := testfleet.StartEtcd(t, nil)
	c := etcd.Client(t)
	e := registered(t, etcd.Endpoint, func(cfg *simengine.Config) {
		cfg.Engine, cfg.Role, cfg.Cache.BlockSize = fleet.SGLang, fleet.Decode, 32
		cfg.ForwarderEndpoint, cfg.KV.ReplayPort = "127.0.0.1:8000", 0
	})
	value, lease := record(t, c, e.ID())
	w, err := wire.DecodeRegistration(e.ID(), value)
	if err != nil {
		t.Fatalf("%v in %s", err, value)
	}
	want := e.Worker()
	if w.ID != e.ID() || w.URL != e.URL() || w.Model != "sim-model" || w.Engine != fleet.SGLang || w.Role != fleet.Decode ||
		w.KVEvents != e.KVEvents() || w.KVReplay != e.KVReplay() || w.BlockSize != 32 || w.Transport != "http" || w.Endpoint != "127.0.0.1:8000" || len(w.Canary) != len(want.Canary) {
		t.Errorf("registered %s\nread as %+v\nwant %+v", value, w, want)
	}
	ttl, err := c.TimeToLive(t.Context(), lease)
	if err != nil || ttl.GrantedTTL != 30 {
		t.Errorf("lease of %d s, %v; want 30", ttl.GrantedTTL, err)
	}
	// What it registers answers: the record came after the ports.
	if resp := get(t, w.URL+"/health"); resp != http.StatusOK {
		t.Errorf("the registered URL answers %d", resp)
	}
}

func get(t *testing.T, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestCloseTakesTheRecordOut(t *testing.T) {
	etcd := testfleet.StartEtcd(t, nil)
	c := etcd.Client(t)
	e := registered(t, etcd.Endpoint, nil)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if value, _ := record(t, c, e.ID()); value != nil {
		t.Errorf("still there: %s", value)
	}
}

func TestKillLeavesTheRecordUntilItsLeaseExpires(t *testing.T) {
	t.Parallel()
	etcd := testfleet.StartEtcd(t, nil)
	c := etcd.Client(t)
	e := registered(t, etcd.Endpoint, func(cfg *simengine.Config) { cfg.Etcd.TTL = 2 * time.Second })
	w := watch(t, c, e.ID())
	e.Kill()
	if value, _ := record(t, c, e.ID()); value == nil {
		t.Error("the record went with the process")
	}
	if ev := next(t, w); ev.Type != clientv3.EventTypeDelete {
		t.Errorf("%s, want the lease to expire", ev.Type)
	}
}

func TestHeartbeatKeepsTheRecordWithoutWritingItAgain(t *testing.T) {
	t.Parallel()
	etcd := testfleet.StartEtcd(t, nil)
	c := etcd.Client(t)
	e := registered(t, etcd.Endpoint, func(cfg *simengine.Config) { cfg.Etcd.TTL = 2 * time.Second })
	w := watch(t, c, e.ID())
	select {
	case r := <-w:
		t.Errorf("the key changed: %+v", r.Events)
	case <-time.After(4 * time.Second): // twice the lease
	}
	// The lease goes: the engine registers anew, under another lease.
	_, lease := record(t, c, e.ID())
	if _, err := c.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, w); ev.Type != clientv3.EventTypeDelete {
		t.Fatalf("%s, want the revoke's delete", ev.Type)
	}
	if ev := next(t, w); ev.Type != clientv3.EventTypePut || clientv3.LeaseID(ev.Kv.Lease) == lease {
		t.Errorf("%s under lease %x, want a new registration", ev.Type, ev.Kv.Lease)
	}
}

func TestRegistrationWaitsForEtcd(t *testing.T) {
	etcd := testfleet.StartEtcd(t, nil)
	etcd.Stop(t)
	cfg := simengine.DefaultConfig()
	cfg.Etcd.Endpoint = strings.TrimPrefix(etcd.Endpoint, "http://")
	e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatalf("an etcd that is down stops the engine: %v", err)
	}
	t.Cleanup(e.Kill)
	if code := get(t, e.URL()+"/health"); code != http.StatusOK {
		t.Errorf("health %d", code)
	}
	etcd.Start(t)
	<-e.Registered()
	if value, _ := record(t, etcd.Client(t), e.ID()); value == nil {
		t.Error("registered, but not there")
	}
}

// slowStream opens a stream that takes a while and returns its reader after the
// first event.
func slowStream(t *testing.T, url string, tokens int) *bufio.Reader {
	t.Helper()
	body := fmt.Sprintf(`{"prompt":"hi","max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	br := bufio.NewReader(resp.Body)
	if _, err := br.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return br
}

func TestDrainRevokesFirstAndFinishesWhatRuns(t *testing.T) {
	etcd := testfleet.StartEtcd(t, nil)
	c := etcd.Client(t)
	e := registered(t, etcd.Endpoint, nil)
	w := watch(t, c, e.ID())
	stream := slowStream(t, e.URL(), 50) // half a second
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(context.WithoutCancel(t.Context())) }()
	if ev := next(t, w); ev.Type != clientv3.EventTypeDelete {
		t.Fatalf("%s, want the record taken out first", ev.Type)
	}
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
	if list := e.Receipts(); list[0].Outcome != simengine.OutcomeComplete || list[0].TokensSent != 50 {
		t.Errorf("receipt %+v", list[0])
	}
}

func TestDrainGivesUpAfterItsTimeout(t *testing.T) {
	cfg := simengine.DefaultConfig()
	cfg.DrainTimeout = 50 * time.Millisecond
	e, err := simengine.Start(context.WithoutCancel(t.Context()), cfg)
	if err != nil {
		t.Fatal(err)
	}
	stream := slowStream(t, e.URL(), 100_000)
	if err = e.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	rest, err := io.ReadAll(stream)
	if err == nil || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("a stream of a quarter of an hour ended well: %v", err)
	}
	if list := e.Receipts(); list[0].Outcome != simengine.OutcomeAborted {
		t.Errorf("receipt %+v", list[0])
	}
}
