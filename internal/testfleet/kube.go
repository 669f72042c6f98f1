package testfleet

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const kubeToken = "token-of-the-test" //nolint:gosec // it opens nothing but a test's server

// Kube is a Kubernetes API server in the test's process. It has no controllers
// and no kubelets: objects are what the test says they are. What it keeps honest
// is the protocol that a client's listing and watching depend on: versions,
// pages of one snapshot, chunked watches with bookmarks, selectors (an object
// that ceases to match is deleted for that watch), 410 for a forgotten version,
// merge patches that change nothing unless they change something, bearer tokens,
// permissions, and 404 for resources that are not installed. It speaks TLS and
// HTTP/2.
//
// All methods may be called from any goroutine.
type Kube struct {
	URL   string // https://host:port; it stays over a restart
	Token string // the bearer token it accepts
	CA    []byte // PEM of the certificate that it shows

	cert   tls.Certificate
	addr   string
	server *httptest.Server

	mu        sync.Mutex
	store     *kubeStore
	installed map[KubeResource]bool
	denied    map[string]bool // "verb plural"
	pages     map[string]kubePage
	counts    map[string]int // requests by verb
	delay     time.Duration
	bookmarks time.Duration
	mute      bool
	marked    uint64        // version of the latest bookmark
	closing   chan struct{} // closed to end the open watches
}

// StartKube starts a server with no objects that ends with the test.
func StartKube(tb testing.TB) *Kube {
	tb.Helper()
	k := &Kube{
		Token: kubeToken, store: newKubeStore(), installed: map[KubeResource]bool{KubePods: true},
		denied: map[string]bool{}, pages: map[string]kubePage{}, counts: map[string]int{}, bookmarks: time.Minute,
	}
	pattern := httptest.NewUnstartedServer(nil)
	pattern.StartTLS() // only for the certificate that it makes
	k.cert = pattern.TLS.Certificates[0]
	k.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pattern.Certificate().Raw})
	pattern.Close()
	k.addr = freeAddress(tb)
	k.URL = "https://" + k.addr
	k.Start(tb)
	tb.Cleanup(k.Stop)
	return k
}

// Start starts the server, with the objects of before.
func (k *Kube) Start(tb testing.TB) {
	tb.Helper()
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", k.addr)
	if err != nil {
		tb.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(k.serve))
	_ = s.Listener.Close()
	s.Listener, s.EnableHTTP2 = l, true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{k.cert}, MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // broken connections are the tests' doing
	k.mu.Lock()
	k.closing = make(chan struct{})
	k.server = s
	k.mu.Unlock()
	s.StartTLS()
}

// Stop ends the server and its connections. A stopped server may be started
// again.
func (k *Kube) Stop() {
	k.mu.Lock()
	s := k.server
	k.server = nil
	if s != nil {
		close(k.closing)
	}
	k.mu.Unlock()
	if s != nil {
		s.CloseClientConnections()
		s.Close()
	}
}

// Drop breaks all open connections; new ones are taken.
func (k *Kube) Drop() {
	k.mu.Lock()
	s := k.server
	k.mu.Unlock()
	if s != nil {
		s.CloseClientConnections()
	}
}

// Kubeconfig writes a kubeconfig for this server and returns its path. address,
// host:port, may name a proxy in front of the server; "" is the server itself.
func (k *Kube) Kubeconfig(tb testing.TB, address string) string {
	tb.Helper()
	if address == "" {
		address = k.addr
	}
	return writeKubeconfig(tb, "https://"+address, k.CA, k.Token)
}

func writeKubeconfig(tb testing.TB, server string, ca []byte, token string) string {
	tb.Helper()
	cfg, err := json.Marshal(map[string]any{ // JSON is YAML
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []any{map[string]any{"name": "test", "cluster": map[string]any{"server": server, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "test", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "test", "context": map[string]any{"cluster": "test", "user": "test"}}},
	})
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err = errors.Join(err, os.WriteFile(path, cfg, 0o600)); err != nil {
		tb.Fatal(err)
	}
	return path
}

// Install serves a further resource, such as a CRD's. Others answer 404.
func (k *Kube) Install(r KubeResource) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.installed[r] = true
}

// Deny takes the permission for verbs (get, list, watch, create, patch, delete)
// on a resource, and Allow gives it back. Everything is allowed at first.
func (k *Kube) Deny(r KubeResource, verbs ...string) { k.permit(r, true, verbs) }

// Allow gives back the permission for verbs on a resource.
func (k *Kube) Allow(r KubeResource, verbs ...string) { k.permit(r, false, verbs) }

func (k *Kube) permit(r KubeResource, denied bool, verbs []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, v := range verbs {
		k.denied[v+" "+r.Plural] = denied
	}
}

// SetDelay makes each request wait before it is looked at.
func (k *Kube) SetDelay(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay = d
}

// SetBookmarks sets how often watches that allow it get a bookmark; they always
// get one before their time is up. 0 sends none at all, as an old server.
func (k *Kube) SetBookmarks(every time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bookmarks = every
}

// SetMute makes watches open and bring nothing, for as long as it is set.
func (k *Kube) SetMute(mute bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mute = mute
}

// Compact forgets the history of changes and the snapshots of listings whose
// last page was not read: watches from before, the open ones included, get 410.
func (k *Kube) Compact() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.store.compact()
	k.pages = map[string]kubePage{}
}

// EndWatches ends the open watches in good order.
func (k *Kube) EndWatches() {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.closing)
	k.closing = make(chan struct{})
}

// Bookmarked returns the version that the latest bookmark named.
func (k *Kube) Bookmarked() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strconv.FormatUint(k.marked, 10)
}

// Unread returns how many listings have pages that were not read yet.
func (k *Kube) Unread() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.pages)
}

// Requests returns how many requests with a verb came so far, refused ones too.
func (k *Kube) Requests(verb string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.counts[verb]
}

// Put creates or replaces an object, given as anything that marshals to it. uid,
// creationTimestamp and resourceVersion are the server's, but for the first two
// of a new object. It returns the version.
func (k *Kube) Put(tb testing.TB, r KubeResource, obj any) string {
	tb.Helper()
	fields, err := decodeObject(obj)
	if err != nil {
		tb.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return strconv.FormatUint(k.store.put(r, fields).version, 10)
}

// Patch applies a JSON merge patch to an object.
func (k *Kube) Patch(tb testing.TB, r KubeResource, namespace, name, patch string) {
	tb.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(patch), &fields); err != nil {
		tb.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.store.objects[r][namespace+"/"+name]
	if was == nil {
		tb.Fatalf("no %s %s/%s", r.Kind, namespace, name)
	}
	k.store.put(r, mergePatch(was.fields, fields))
}

// Delete removes an object at once. What a deletion's grace period shows first,
// a deletionTimestamp, is for the test to put.
func (k *Kube) Delete(tb testing.TB, r KubeResource, namespace, name string) {
	tb.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.store.remove(r, namespace+"/"+name) == nil {
		tb.Fatalf("no %s %s/%s", r.Kind, namespace, name)
	}
}

// Version returns the latest version.
func (k *Kube) Version() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strconv.FormatUint(k.store.version, 10)
}

// resource finds the resource that a path names; rest is what follows its
// group and version.
func (k *Kube) resource(path string) (r KubeResource, namespace, name string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for r := range k.installed {
		rest, found := strings.CutPrefix(path, r.path()+"/")
		if !found {
			continue
		}
		parts := strings.Split(rest, "/")
		if len(parts) > 2 && parts[0] == "namespaces" {
			namespace, parts = parts[1], parts[2:]
		}
		switch {
		case parts[0] != r.Plural || len(parts) > 3:
		case len(parts) == 1:
			return r, namespace, "", true
		case len(parts) == 2 || parts[2] == "status":
			return r, namespace, parts[1], true
		}
	}
	return KubeResource{}, "", "", false
}
