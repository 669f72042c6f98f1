package giecompat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/gateway-api-inference-extension/test/integration"
	"sigs.k8s.io/yaml"

	"pointsman/internal/testfleet"
	"pointsman/internal/testkit"
)

// api is a real API server.
type api struct {
	t      *testing.T
	base   string
	client *http.Client
}

func newAPI(t *testing.T, kubeconfig string) *api {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &api{t, cfg.Host, client}
}

// try sends a request and returns its status and answer.
func (a *api) try(method, path, kind string, body []byte) (int, string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.base+path, bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	resp, err := a.client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return resp.StatusCode, string(said)
}

// create makes an object, for which its CRD may still have to be served.
func (a *api) create(path string, obj any) {
	a.t.Helper()
	body, err := json.Marshal(obj)
	if err != nil {
		a.t.Fatal(err)
	}
	testkit.Until(a.t, "the resource of "+path, func() bool {
		code, said := a.try(http.MethodPost, path, "application/json", body)
		if code >= 300 && code < 500 && code != http.StatusNotFound {
			a.t.Fatalf("POST %s: %d %s", path, code, said)
		}
		return code < 300
	})
}

func (a *api) patch(path, body string) {
	a.t.Helper()
	if code, said := a.try(http.MethodPatch, path, "application/merge-patch+json", []byte(body)); code >= 300 {
		a.t.Fatalf("PATCH %s: %d %s", path, code, said)
	}
}

// crd installs a CRD as the GIE module ships it.
func (a *api) crd(dir, name string) {
	a.t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "config", "crd", "bases", name))
	if err != nil {
		a.t.Fatal(err)
	}
	var obj map[string]any
	if err := yaml.Unmarshal(text, &obj); err != nil {
		a.t.Fatal(err)
	}
	delete(obj, "status")
	a.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", obj)
}

// moduleDir is where the module of the helpers is.
func moduleDir(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api-inference-extension").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// The picker on a real API server with GIE's own CRDs: their schemas and defaults
// are what the objects go through. Objectives and rewrites come after the picker
// has started without them.
func TestARealAPIServer(t *testing.T) {
	kubeconfig := testfleet.StartRealKube(t)
	a := newAPI(t, kubeconfig)
	dir := moduleDir(t)
	a.crd(dir, "inference.networking.k8s.io_inferencepools.yaml")
	a.create("/api/v1/namespaces", object("metadata", object("name", namespace)))
	in := "/namespaces/" + namespace
	for i, ip := range pods {
		name := fmt.Sprintf("pod-%d", i)
		a.create("/api/v1"+in+"/pods", object(
			"metadata", object("name", name, "labels", object("app", poolName)),
			"spec", object("nodeName", "node", "containers", []any{object("name", "engine", "image", "engine", "ports", []any{object("containerPort", 8000)})})))
		a.patch("/api/v1"+in+"/pods/"+name+"/status", fmt.Sprintf(
			`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":"True"}]}}`, ip, ip))
	}
	poolPath := "/apis/inference.networking.k8s.io/v1" + in + "/inferencepools"
	a.create(poolPath, object("apiVersion", "inference.networking.k8s.io/v1", "kind", "InferencePool", "metadata", object("name", poolName), "spec", object(
		"selector", object("matchLabels", object("app", poolName)), "targetPorts", []any{object("number", 8000)},
		"endpointPickerRef", object("name", "epp", "port", object("number", 9002)))))
	w := &world{t: t, pods: pods, output: new(bytes.Buffer)}
	w.start(kubeconfig)
	w.routed(w.ask(2, integration.ReqLLM(discard(), "hello", model, "")...)[0], endpoints(pods...)...)

	a.crd(dir, "inference.networking.x-k8s.io_inferencemodelrewrites.yaml")
	a.create("/apis/inference.networking.x-k8s.io/v1alpha2"+in+"/inferencemodelrewrites", object(
		"apiVersion", "inference.networking.x-k8s.io/v1alpha2", "kind", "InferenceModelRewrite", "metadata", object("name", "canary"),
		"spec", object("poolRef", object("name", poolName), "rules", []any{object(
			"matches", []any{object("model", object("value", model))}, "targets", []any{object("modelRewrite", "v2", "weight", 1)})})))
	w.eventually("the rewrite", func() bool {
		return strings.Contains(string(w.ask(2, integration.ReqLLM(discard(), "hello", model, "")...)[1].GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetBody()), `"v2"`)
	})

	a.patch(poolPath+"/"+poolName, `{"spec":{"targetPorts":[{"number":8000},{"number":8001}]}}`)
	w.eventually("the second port", func() bool {
		messages := integration.GenerateStreamedRequestSet(discard(), "hello", model, "", []string{"192.168.1.1:8001"})
		return w.ask(1, messages...)[0].GetRequestHeaders() != nil
	})
	code, said := a.try(http.MethodGet, poolPath+"/"+poolName, "application/json", nil)
	if code != http.StatusOK || strings.Contains(said, "pointsman") || strings.Contains(said, `"status"`) {
		t.Errorf("the pool's status was written: %d %s", code, said)
	}
}

func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()
	testkit.Within(w.t, 90*time.Second, what, is)
}
