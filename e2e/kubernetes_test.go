package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"pointsman/internal/stack"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

const (
	kubeNamespace  = "models"
	kubeDeployment = "qwen"
)

// kubeFleet is a fleet without etcd: workers annotate their Pods, and the EPP
// and the forwarders watch those. The test is the kubelet.
type kubeFleet struct {
	*stack.Stack

	api  *testfleet.Kube
	http *http.Client           // trusts the API server
	pods map[string]*corev1.Pod // by worker ID
}

// startKubeFleet starts two workers, each in a Pod that is Running and Ready.
func startKubeFleet(t *testing.T) *kubeFleet {
	t.Helper()
	f := &kubeFleet{api: testfleet.StartKube(t), pods: map[string]*corev1.Pod{}}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(f.api.CA)
	f.http = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	if err := errors.Join(os.WriteFile(token, []byte(f.api.Token), 0o600), os.WriteFile(ca, f.api.CA, 0o600)); err != nil {
		t.Fatal(err)
	}
	watch := []string{
		"--allow-address-cidrs", "127.0.0.0/8", // of a real cluster no worker is there
		"--discovery-backend", "kubernetes", "--kubeconfig", f.api.Kubeconfig(t, ""),
		"--k8s-namespace", kubeNamespace, "--k8s-label-selector", "infera.amd.com/deployment=" + kubeDeployment,
	}
	// Flags that come later count: these take the place of the stack's own, whose
	// etcd never runs.
	cfg := stack.Config{Workers: stack.MixedWorkers(2), EtcdDown: true, EPPArgs: watch, ForwarderArgs: watch}
	for i := range cfg.Workers {
		cfg.Workers[i].Args = append(fast(), "--discovery-backend", "kubernetes", "--kube-api", f.api.URL, "--kube-token-file", token,
			"--kube-ca", ca, "--pod-namespace", kubeNamespace, "--pod-name", fmt.Sprintf("w-%d", i),
			"--kube-refresh", "1h") // what the test takes away stays away
	}
	f.Stack = startFleet(t, cfg)
	for i, w := range f.Workers {
		host, _, err := net.SplitHostPort(w.ID)
		if err != nil {
			t.Fatal(err)
		}
		p := testfleet.WorkerPod(kubeNamespace, fmt.Sprintf("w-%d", i), kubeDeployment, "")
		p.Status.PodIP, p.Status.PodIPs = host, []corev1.PodIP{{IP: host}}
		f.api.PutPod(t, p)
		f.pods[w.ID] = p
	}
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
	defer cancel()
	if err := f.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return f
}

// setReady is what the kubelet reports of a worker's container.
func (f *kubeFleet) setReady(t *testing.T, workerID string, ready bool) {
	t.Helper()
	p := f.pods[workerID]
	testfleet.SetReady(p, ready)
	status, err := json.Marshal(map[string]any{"status": p.Status})
	if err != nil {
		t.Fatal(err)
	}
	f.api.Patch(t, testfleet.KubePods, kubeNamespace, p.Name, string(status))
}

// record returns the annotation of a worker's Pod, "" for none.
func (f *kubeFleet) record(ctx context.Context, workerID string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.api.URL+"/api/v1/namespaces/"+kubeNamespace+"/pods/"+f.pods[workerID].Name, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+f.api.Token)
	resp, err := f.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var p corev1.Pod
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		return "", err
	}
	return p.Annotations[wire.Annotation], nil
}

// count waits until the EPP and every forwarder that runs have n active workers.
func (f *kubeFleet) count(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := f.WaitFleet(ctx, "epp-0", f.EPPs[0].Admin, n, f.EPPs[0].Process())
	for _, w := range f.Workers {
		err = errors.Join(err, f.WaitFleet(ctx, w.Forwarder.Name, w.ForwarderAdmin, n, w.Forwarder.Process()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// served sends n requests with prompts of their own and returns how many each
// worker's receipts show.
func (f *kubeFleet) served(t *testing.T, name string, n int) map[string]int {
	t.Helper()
	by := map[string]int{}
	for i := range n {
		requestID := id(t, fmt.Sprintf("%s-%d", name, i))
		parse(t, chat(t, f.Stack, requestID, words(len(name)*100+i, 40), nil))
		by[theReceipt(t, f.Stack, requestID).WorkerID]++
	}
	return by
}

// streamTokens make an answer of five seconds, which must outlast what is done to
// its worker meanwhile.
const streamTokens = 2500

// openStream starts a long answer and returns it after its first line.
func (f *kubeFleet) openStream(t *testing.T, requestID string) *bufio.Reader {
	t.Helper()
	body := chatBody(t, "hello", map[string]any{"stream": true, "max_tokens": streamTokens, "ignore_eos": true})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-Id", requestID)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	stream := bufio.NewReader(resp.Body)
	if line, err := stream.ReadString('\n'); resp.StatusCode != http.StatusOK || err != nil {
		t.Fatalf("%d, %v: %s", resp.StatusCode, err, line)
	}
	return stream
}

// TestWorkersAreFoundThroughTheirPods leads a worker through its Pod's life:
// found by its annotation, not Ready, Ready again, deleted.
func TestWorkersAreFoundThroughTheirPods(t *testing.T) {
	t.Parallel()
	f := startKubeFleet(t)
	for _, w := range f.Workers {
		raw, err := f.record(t.Context(), w.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := wire.DecodeRegistration("", []byte(raw)); err != nil || got.ID != w.ID || got.URL != w.URL {
			t.Errorf("the annotation of %s is %q: %v", w.ID, raw, err)
		}
	}
	if by := f.served(t, "both", 8); len(by) != 2 {
		t.Errorf("two workers, and %v served", by)
	}

	// A stream runs on one of them while its Pod ceases to be Ready and its record
	// goes.
	streamID := id(t, "stream")
	stream := f.openStream(t, streamID)
	list := receipts(t, f.Stack, streamID)
	if len(list) != 1 {
		t.Fatalf("receipts of the stream: %+v", list)
	}
	leaving := workerOf(t, f.Stack, list[0].WorkerID)
	staying := f.Workers[0]
	if staying == leaving {
		staying = f.Workers[1]
	}
	f.setReady(t, leaving.ID, false)
	f.count(t, 1)
	f.loseRecord(t, leaving, streamID, stream)
	if by := f.served(t, "unready", 4); len(by) != 1 || by[staying.ID] != 4 {
		t.Errorf("%s is not Ready, and %v served", leaving.ID, by)
	}
	f.setReady(t, leaving.ID, true)
	f.count(t, 2)
	if by := f.served(t, "again", 8); by[leaving.ID] == 0 {
		t.Errorf("%s is Ready again, and %v served", leaving.ID, by)
	}
	f.deletePod(t, leaving, staying)
}

// loseRecord takes the annotation away while a stream runs, which goes on
// through a forwarder that knows its worker no more, and puts it back.
func (f *kubeFleet) loseRecord(t *testing.T, w *stack.Worker, streamID string, stream *bufio.Reader) {
	t.Helper()
	record, err := f.record(t.Context(), w.ID)
	if err != nil {
		t.Fatal(err)
	}
	f.annotate(t, w, nil)
	eventually(t, "the forwarder to forget its worker", func(ctx context.Context) error {
		raw, err := stack.Get(ctx, http.DefaultClient, w.ForwarderURL+"/v1/workers")
		if err == nil && bytes.Contains(raw, []byte(w.ID)) {
			err = errNotYet
		}
		return err
	})
	if list := receipts(t, f.Stack, streamID); len(list) != 1 || list[0].EndedAt != nil {
		t.Errorf("the stream should run on: %+v", list)
	}
	f.finish(t, stream, streamID)
	f.annotate(t, w, record)
}

// annotate patches a worker's Pod; nil takes the record away.
func (f *kubeFleet) annotate(t *testing.T, w *stack.Worker, record any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{wire.Annotation: record}}})
	if err != nil {
		t.Fatal(err)
	}
	f.api.Patch(t, testfleet.KubePods, kubeNamespace, f.pods[w.ID].Name, string(patch))
}

// deletePod ends a worker as Kubernetes does, and sees its streams through.
func (f *kubeFleet) deletePod(t *testing.T, leaving, staying *stack.Worker) {
	t.Helper()
	// The only one Ready gets the stream.
	f.setReady(t, staying.ID, false)
	f.count(t, 1)
	streamID := id(t, "deleted")
	stream := f.openStream(t, streamID)
	f.setReady(t, staying.ID, true)
	f.count(t, 2)

	f.api.Patch(t, testfleet.KubePods, kubeNamespace, f.pods[leaving.ID].Name,
		`{"metadata":{"deletionTimestamp":"`+time.Now().UTC().Format(time.RFC3339)+`","deletionGracePeriodSeconds":120}}`)
	f.count(t, 1)
	if by := f.served(t, "deleting", 2); by[staying.ID] != 2 {
		t.Errorf("the Pod of %s is being deleted, and %v served", leaving.ID, by)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- leaving.Engine.Stop(20 * time.Second) }()
	eventually(t, "the annotation to go", func(ctx context.Context) error {
		if record, err := f.record(ctx, leaving.ID); err != nil || record != "" {
			return errors.Join(errNotYet, err)
		}
		return nil
	})
	if list := receipts(t, f.Stack, streamID); len(list) != 1 || list[0].WorkerID != leaving.ID || list[0].EndedAt != nil {
		t.Errorf("the stream should run on in %s, deregistered: %+v", leaving.ID, list)
	}
	f.wholeStream(t, stream)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	f.api.Delete(t, testfleet.KubePods, kubeNamespace, f.pods[leaving.ID].Name)
	f.count(t, 1)
	if by := f.served(t, "gone", 2); by[staying.ID] != 2 {
		t.Errorf("%s is alone, and %v served", staying.ID, by)
	}
}

// finish reads a stream to its end, and checks its one receipt.
func (f *kubeFleet) finish(t *testing.T, stream *bufio.Reader, requestID string) {
	t.Helper()
	f.wholeStream(t, stream)
	if rc := theReceipt(t, f.Stack, requestID); rc.TokensSent != streamTokens {
		t.Errorf("receipt %+v", rc)
	}
}

// wholeStream reads a stream to its end.
func (*kubeFleet) wholeStream(t *testing.T, stream *bufio.Reader) {
	t.Helper()
	rest, err := io.ReadAll(stream)
	if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
		t.Errorf("the stream was cut: %v after %d bytes", err, len(rest))
	}
}
