package testfleet

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// kubeClient speaks to a Kube as a program without a client library does.
type kubeClient struct {
	t    *testing.T
	k    *Kube
	http *http.Client
}

func newKubeClient(t *testing.T) *kubeClient {
	t.Helper()
	k := StartKube(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(k.CA)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &kubeClient{t: t, k: k, http: &http.Client{Transport: tr}}
}

func (c *kubeClient) do(ctx context.Context, method, path, body string, headers ...string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, c.k.URL+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.k.Token)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

// answer is what the tests read of lists, objects and statuses.
type answer struct {
	Type     string
	Kind     string
	Reason   string
	Code     int
	Metadata struct {
		Name, ResourceVersion, Continue, UID string
		Annotations                          map[string]string
	}
	Items  []answer
	Object *answer
}

func (c *kubeClient) ask(method, path, body string, headers ...string) (int, answer) {
	c.t.Helper()
	resp := c.do(c.t.Context(), method, path, body, headers...)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		c.t.Fatalf("%s: %v", data, err)
	}
	return resp.StatusCode, a
}

// watch returns the next lines of a watch, at most n.
func (c *kubeClient) watch(n int, query string) []string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	resp := c.do(ctx, http.MethodGet, podsPath+"?watch=true&"+query, "")
	defer resp.Body.Close()
	var out []string
	for lines := bufio.NewScanner(resp.Body); len(out) < n && lines.Scan(); {
		var a answer
		if err := json.NewDecoder(bytes.NewReader(lines.Bytes())).Decode(&a); err != nil || a.Object == nil {
			c.t.Fatalf("line %s: %v", lines.Bytes(), err)
		}
		name := a.Object.Metadata.Name
		if a.Type == "ERROR" {
			name = fmt.Sprint(a.Object.Code)
		}
		out = append(out, strings.TrimSpace(a.Type+" "+name))
	}
	return out
}

func (c *kubeClient) want(got []string, want ...string) {
	c.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		c.t.Errorf("got %q, want %q", got, want)
	}
}

const podsPath = "/api/v1/namespaces/ns/pods"

func TestKubeRefuses(t *testing.T) {
	c := newKubeClient(t)
	c.k.Deny(KubePods, "list")
	for _, tc := range []struct {
		name, method, path string
		headers            []string
		code               int
		reason             string
	}{
		{"a wrong token", "GET", podsPath, []string{"Authorization", "Bearer no"}, 401, "Unauthorized"},
		{"a missing permission", "GET", podsPath, nil, 403, "Forbidden"},
		{"a resource that is not installed", "GET", "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools", nil, 404, "NotFound"},
		{"a Pod that is not there", "GET", podsPath + "/x", nil, 404, "NotFound"},
		{"protobuf alone", "GET", podsPath, []string{"Accept", "application/vnd.kubernetes.protobuf"}, 406, "NotAcceptable"},
		{"a patch of another form", "PATCH", podsPath + "/x", []string{"Content-Type", "application/json-patch+json"}, 415, "UnsupportedMediaType"},
		{"a bad label selector", "GET", podsPath + "?watch=true&labelSelector=((", nil, 400, "BadRequest"},
		{"a field that can't be selected by", "GET", podsPath + "?watch=true&fieldSelector=spec.x%3D1", nil, 400, "BadRequest"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, a := c.ask(tc.method, tc.path, "{}", tc.headers...)
			if code != tc.code || a.Kind != "Status" || a.Reason != tc.reason || a.Code != code {
				t.Errorf("%d %+v, want %d %s", code, a, tc.code, tc.reason)
			}
		})
	}
}

func TestKubeListsOneSnapshotInPages(t *testing.T) {
	c := newKubeClient(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		c.k.PutPod(t, WorkerPod("ns", name, "x", ""))
	}
	c.k.PutPod(t, WorkerPod("elsewhere", "e", "x", ""))
	_, first := c.ask("GET", podsPath+"?limit=3&labelSelector=infera.amd.com/deployment%3Dx", "")
	c.k.Delete(t, KubePods, "ns", "d")
	_, rest := c.ask("GET", podsPath+"?limit=3&continue="+first.Metadata.Continue, "")
	if len(first.Items) != 3 || len(rest.Items) != 1 || rest.Items[0].Metadata.Name != "d" ||
		rest.Metadata.ResourceVersion != first.Metadata.ResourceVersion || rest.Metadata.Continue != "" {
		t.Errorf("got %+v and %+v", first, rest)
	}
	if code, a := c.ask("GET", podsPath+"?limit=3&continue="+first.Metadata.Continue, ""); code != http.StatusGone || a.Reason != "Expired" {
		t.Errorf("a page that was read: %d %+v", code, a)
	}
	if code, _ := c.ask("GET", podsPath+"?resourceVersion=99999999", ""); code != http.StatusGatewayTimeout {
		t.Errorf("a version of the future: %d", code)
	}
}

func TestKubeWatchesFromAVersion(t *testing.T) {
	c := newKubeClient(t)
	p := WorkerPod("ns", "a", "x", "")
	c.k.PutPod(t, p)
	from := c.k.Version()
	c.k.PutPod(t, p) // without a change there is no event
	c.k.PutPod(t, WorkerPod("ns", "b", "x", ""))
	c.k.PutPod(t, WorkerPod("elsewhere", "c", "x", ""))
	c.k.PutPod(t, WorkerPod("ns", "d", "other", ""))
	p.Labels["infera.amd.com/deployment"] = "y"
	c.k.PutPod(t, p)
	p.Labels["infera.amd.com/deployment"] = "x"
	c.k.PutPod(t, p)
	c.k.Patch(t, KubePods, "ns", "a", `{"metadata":{"annotations":{"k":"v"}}}`)
	c.k.Delete(t, KubePods, "ns", "b")
	selected := "labelSelector=infera.amd.com/deployment%3Dx&timeoutSeconds=1&resourceVersion="
	c.want(c.watch(9, selected+from), "ADDED b", "DELETED a", "ADDED a", "MODIFIED a", "DELETED b")
	c.want(c.watch(9, "fieldSelector=metadata.name%3Db&timeoutSeconds=1&resourceVersion="+from), "ADDED b", "DELETED b")
	c.want(c.watch(2, "resourceVersion=0"), "ADDED a", "ADDED d")
	c.want(c.watch(1, "allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion="+c.k.Version()), "BOOKMARK")
	c.k.Compact()
	c.want(c.watch(9, selected+from), "ERROR 410")
	c.want(c.watch(9, "timeoutSeconds=1&resourceVersion="+c.k.Version()))
}

func TestKubePatchesAsALauncherDoes(t *testing.T) {
	c := newKubeClient(t)
	c.k.PutPod(t, WorkerPod("ns", "a", "x", ""))
	patch := func(body string) answer {
		t.Helper()
		code, a := c.ask("PATCH", podsPath+"/a", body, "Content-Type", "application/merge-patch+json")
		if code != http.StatusOK {
			t.Fatalf("%d %+v", code, a)
		}
		return a
	}
	set := `{"metadata":{"annotations":{"infera.amd.com/worker-info":"{}"}}}`
	first := patch(set)
	if again := patch(set); again.Metadata.ResourceVersion != first.Metadata.ResourceVersion {
		t.Error("a patch that changes nothing makes a version")
	}
	gone := patch(`{"metadata":{"annotations":{"infera.amd.com/worker-info":null}}}`)
	if len(gone.Metadata.Annotations) != 0 || len(first.Metadata.Annotations) != 1 || gone.Metadata.UID != first.Metadata.UID {
		t.Errorf("first %+v, then %+v", first, gone)
	}
	if code, a := c.ask("GET", podsPath+"/a", ""); code != http.StatusOK || a.Metadata.ResourceVersion != gone.Metadata.ResourceVersion {
		t.Errorf("%d %+v", code, a)
	}
}

func TestKubeServesWhatIsInstalled(t *testing.T) {
	c := newKubeClient(t)
	pools := KubeResource{Group: "inference.networking.k8s.io", Version: "v1", Plural: "inferencepools", Kind: "InferencePool"}
	c.k.Install(pools)
	path := "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
	if code, a := c.ask("POST", path, `{"metadata":{"name":"p"}}`); code != http.StatusCreated || a.Kind != "InferencePool" {
		t.Errorf("%d %+v", code, a)
	}
	if code, _ := c.ask("POST", path, `{"metadata":{"name":"p"}}`); code != http.StatusConflict {
		t.Errorf("a second of the name: %d", code)
	}
	if _, a := c.ask("GET", path, ""); a.Kind != "InferencePoolList" || len(a.Items) != 1 {
		t.Errorf("got %+v", a)
	}
	if code, a := c.ask("DELETE", path+"/p", ""); code != http.StatusOK || a.Metadata.Name != "p" {
		t.Errorf("%d %+v", code, a)
	}
}
