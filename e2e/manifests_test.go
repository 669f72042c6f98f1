package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"pointsman/internal/stack"
	"pointsman/internal/testfleet"
	"pointsman/wire"
)

// TestTheImageNeedsNothingElse lays out the image's last stage as its Dockerfile
// says and starts the endpoint picker in it as Infera's operator does: by another
// name, as nobody, without a shell or a library, and with nothing to write to.
func TestTheImageNeedsNothingElse(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root may change the root directory")
	}
	image := t.TempDir()
	entry := filepath.Join(t.TempDir(), "python3")
	build := exec.Command("go", "build", "-o", entry, "./manifests/image/python3")
	build.Dir, build.Env = theRig.root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	put := func(from, to string) {
		to = filepath.Join(image, to)
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err = os.WriteFile(to, data, 0o555); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(theRig.bin, "epp"), "epp")
	put(filepath.Join(theRig.bin, "forwarder"), "forwarder")
	put(entry, "usr/local/bin/python3")
	workers := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(workers, []byte("workers: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	put(workers, "workers.yaml")
	for module, port := range map[string]string{"infera.gaie": "9090", "infera.server": "8000"} {
		host := "127.199.8.1"
		cmd := exec.Command("/usr/local/bin/python3", "-m", module, "--host="+host, "--discovery-backend=static", "--static-file=/workers.yaml", "--kv-event-transport=none", "--drain-delay=0")
		if module == "infera.server" {
			cmd.Args = append(cmd.Args, "--request-transport=http", "--router-mode=direct")
		}
		cmd.Env, cmd.Dir = []string{"PATH=/usr/local/bin:/"}, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: image, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		var log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &log, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := stack.Until(ctx, module, func(ctx context.Context) error {
			_, err := stack.Get(ctx, http.DefaultClient, "http://"+host+":"+port+"/health")
			return err
		})
		cancel()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if end := cmd.Wait(); err != nil || end != nil {
			t.Errorf("%s: %v, its end: %v\n%s", module, err, end, &log)
		}
	}
}

// cluster is a real API server, without anything that runs Pods.
type cluster struct {
	t      *testing.T
	config *rest.Config
	client *http.Client
	kinds  map[string]map[string]resource // by group and version, by kind
}

type resource struct {
	Name, Kind string
	Namespaced bool
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	return clusterAt(t, testfleet.StartRealKube(t))
}

// clusterAt is a client of the API server that a kubeconfig names.
func clusterAt(t *testing.T, kubeconfig string) *cluster {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return &cluster{t, config, client, map[string]map[string]resource{}}
}

// call makes a request as a user, "" for the administrator.
func (c *cluster) call(as, method, path string, body any) (int, []byte) {
	c.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.config.Host+path, bytes.NewReader(data))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if as != "" {
		req.Header["Impersonate-User"], req.Header["Impersonate-Group"] = []string{as}, []string{"system:serviceaccounts", "system:authenticated"}
	}
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// path returns where objects of the kind are created.
func (c *cluster) path(version, kind, namespace string) string {
	c.t.Helper()
	root := "/apis/" + version
	if version == "v1" {
		root = "/api/v1"
	}
	if c.kinds[version] == nil {
		c.kinds[version] = map[string]resource{}
		status, body := c.call("", http.MethodGet, root, nil)
		var list struct{ Resources []resource }
		if err := json.Unmarshal(body, &list); err != nil || status != http.StatusOK {
			c.t.Fatalf("%s: %d %s", root, status, body)
		}
		for _, r := range list.Resources {
			if !strings.Contains(r.Name, "/") {
				c.kinds[version][r.Kind] = r
			}
		}
	}
	r, ok := c.kinds[version][kind]
	switch {
	case !ok:
		c.t.Fatalf("the API server has no %s %s", version, kind)
	case r.Namespaced:
		return root + "/namespaces/" + namespace + "/" + r.Name
	}
	return root + "/" + r.Name
}

// create creates an object strictly: unknown and doubled fields are refused.
func (c *cluster) create(o map[string]any, namespace, query string) (int, []byte) {
	c.t.Helper()
	meta, _ := o["metadata"].(map[string]any)
	if own, _ := meta["namespace"].(string); own != "" {
		namespace = own
	}
	return c.call("", http.MethodPost, c.path(o["apiVersion"].(string), o["kind"].(string), namespace)+"?fieldValidation=Strict"+query, o)
}

// manifests renders all manifests and returns the objects of each set by name.
func manifests(t *testing.T) map[string][]map[string]any {
	t.Helper()
	dir := t.TempDir()
	render := exec.Command("go", "run", ".", "-out", dir)
	render.Dir = filepath.Join(theRig.root, "manifests", "check")
	if out, err := render.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string][]map[string]any{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []map[string]any
		if err = json.Unmarshal(data, &list); err != nil {
			t.Fatal(err)
		}
		sets[strings.TrimSuffix(filepath.Base(file), ".json")] = list
	}
	return sets
}

// TestARealAPIServerTakesTheManifests creates every object of every set on a real
// API server that has the gateways' own definitions, their CEL rules included.
// Then it proves the chart's permissions: the EPP works with them, and they allow
// nothing else.
func TestARealAPIServerTakesTheManifests(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	sets := manifests(t)
	for _, crd := range sets["crds"] {
		if status, body := c.create(crd, "", ""); status != http.StatusCreated {
			t.Fatalf("%v: %d %s", crd["metadata"].(map[string]any)["name"], status, body)
		}
	}
	c.create(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "models"}}, "", "")
	objects := 0
	for name, set := range sets {
		if name == "crds" {
			continue
		}
		for _, o := range set {
			eventually(t, fmt.Sprintf("%s: %s of %s to be taken", o["apiVersion"], o["kind"], name), func(context.Context) error {
				status, body := c.create(o, "models", "&dryRun=All")
				switch status {
				case http.StatusCreated:
					return nil
				case http.StatusNotFound: // its definition is new
					return fmt.Errorf("%s", body)
				}
				t.Errorf("%s: %s: %d %s", name, o["kind"], status, body)
				return nil
			})
			objects++
		}
	}
	t.Logf("%d objects", objects)

	for _, o := range sets["chart-everything"] {
		if slices.Contains([]string{"ServiceAccount", "Role", "RoleBinding", "InferencePool"}, o["kind"].(string)) {
			if status, body := c.create(o, "models", ""); status != http.StatusCreated {
				t.Fatalf("%s: %d %s", o["kind"], status, body)
			}
		}
	}
	const epp, worker = "system:serviceaccount:models:pointsman-epp", "system:serviceaccount:models:pointsman-worker"
	everyone := c.permissions("system:serviceaccount:models:nobody")
	eventually(t, "the roles to count", func(context.Context) error {
		for user, want := range map[string][]string{
			epp: {
				"inference.networking.k8s.io inferencepools,pointsman: list,watch",
				"inference.networking.x-k8s.io,llm-d.ai inferenceobjectives,inferencemodelrewrites: list,watch",
				" pods: list,watch",
			},
			worker: {" pods: list,patch,watch"},
		} {
			got := slices.DeleteFunc(c.permissions(user), func(p string) bool { return slices.Contains(everyone, p) })
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s may %q, want %q", user, got, want)
			}
		}
		return nil
	})
	for _, denied := range []string{"/api/v1/namespaces/default/pods", "/api/v1/pods", "/api/v1/namespaces/models/secrets", "/api/v1/nodes"} {
		if status, _ := c.call(epp, http.MethodGet, denied, nil); status != http.StatusForbidden {
			t.Errorf("the EPP gets %s: %d", denied, status)
		}
	}
	c.followedBy(epp, argsOf(t, sets["chart-defaults"], "pointsman-epp"))
}

// permissions returns what a user may do in the chart's namespace, as
// "groups resources,names: verbs".
func (c *cluster) permissions(user string) []string {
	c.t.Helper()
	status, body := c.call(user, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": map[string]any{"namespace": "models"},
	})
	var review struct {
		Status struct {
			ResourceRules []struct{ Verbs, APIGroups, Resources, ResourceNames []string }
			Incomplete    bool
		}
	}
	if err := json.Unmarshal(body, &review); err != nil || status != http.StatusCreated || review.Status.Incomplete {
		c.t.Fatalf("%d %s: %v", status, body, err)
	}
	var got []string
	for _, rule := range review.Status.ResourceRules {
		slices.Sort(rule.Verbs)
		got = append(got, fmt.Sprintf("%s %s: %s", strings.Join(rule.APIGroups, ","), strings.Join(append(rule.Resources, rule.ResourceNames...), ","), strings.Join(rule.Verbs, ",")))
	}
	return got
}

// argsOf returns the arguments of a Deployment's first container.
func argsOf(t *testing.T, set []map[string]any, name string) []string {
	t.Helper()
	for _, o := range set {
		var d appsv1.Deployment
		data, err := json.Marshal(o)
		if err != nil || o["kind"] != "Deployment" || json.Unmarshal(data, &d) != nil || d.Name != name {
			continue
		}
		return d.Spec.Template.Spec.Containers[0].Args
	}
	t.Fatalf("there is no Deployment %s", name)
	return nil
}

// followedBy runs the real EPP as a user, with the chart's own arguments, until
// it has found the pool's worker.
func (c *cluster) followedBy(user string, args []string) {
	c.t.Helper()
	pod := testfleet.WorkerPod("models", "w-0", "qwen", `{"worker_id":"10.0.0.1:30000","url":"http://10.0.0.1:30000","model_name":"m","engine":"vllm","disagg_mode":"mixed","status":"active"}`)
	pod.Labels["app.kubernetes.io/instance"], pod.Labels["app.kubernetes.io/component"] = "pointsman", "worker"
	pod.Spec.NodeName = "node"
	status, body := c.call("", http.MethodPost, "/api/v1/namespaces/models/pods", pod)
	if status != http.StatusCreated {
		c.t.Fatalf("%d %s", status, body)
	}
	if status, body = c.call("", http.MethodPatch, "/api/v1/namespaces/models/pods/w-0/status", map[string]any{"status": pod.Status}); status != http.StatusOK {
		c.t.Fatalf("%d %s", status, body)
	}
	if record, _, _ := strings.Cut(pod.Annotations[wire.Annotation], ","); record == "" {
		c.t.Fatal("the Pod has no record")
	}
	kubeconfig := filepath.Join(c.t.TempDir(), "kubeconfig")
	config := clientcmdapi.Config{
		CurrentContext: "epp",
		Clusters:       map[string]*clientcmdapi.Cluster{"k": {Server: c.config.Host, CertificateAuthorityData: c.config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: c.config.BearerToken, Impersonate: user, ImpersonateGroups: []string{"system:serviceaccounts", "system:authenticated"}}},
		Contexts:       map[string]*clientcmdapi.Context{"epp": {Cluster: "k", AuthInfo: "u"}},
	}
	if err := clientcmd.WriteToFile(config, kubeconfig); err != nil {
		c.t.Fatal(err)
	}
	const host = "127.199.7.1"
	var log bytes.Buffer
	cmd := exec.Command(filepath.Join(theRig.bin, "epp"), append(args, // what comes later counts
		"--host="+host, "--kubeconfig="+kubeconfig, "--pool-namespace=models", "--kv-event-transport=none", "--drain-delay=0")...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	err := stack.Until(ctx, "the EPP to find the worker", func(ctx context.Context) error {
		metrics, err := stack.Get(ctx, http.DefaultClient, "http://"+host+":9090/metrics")
		if err == nil && !strings.Contains(string(metrics), `infera_active_workers{disagg_mode="mixed"} 1`) {
			err = fmt.Errorf("it knows no worker")
		}
		return err
	})
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if err != nil {
		c.t.Errorf("%v\n%s", err, &log)
	}
}
