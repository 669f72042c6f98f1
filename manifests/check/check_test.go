package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/v2/loader"
	sigsyaml "sigs.k8s.io/yaml"
)

const root = "../.."

func TestEveryManifestIsValid(t *testing.T) {
	var out bytes.Buffer
	ok, err := run(root, t.TempDir(), false, &out)
	if err != nil || !ok {
		t.Fatalf("error %v\n%s", err, &out)
	}
	if !strings.HasSuffix(out.String(), `"invalid":0}`+"\n") {
		t.Errorf("last line of %q", &out)
	}
}

// TestFaultsAreFound keeps the check able to fail: each object is good but for
// one thing.
func TestFaultsAreFound(t *testing.T) {
	known, err := loadSchemas(root)
	if err != nil {
		t.Fatal(err)
	}
	house, err := loadHouse(root)
	if err != nil {
		t.Fatal(err)
	}
	const (
		container = `{name: epp, image: i, command: [/epp], args: [--grpc-port=9002],
 ports: [{name: metrics, containerPort: 9090}], resources: {requests: {cpu: 1}, limits: {memory: 1Gi}},
 startupProbe: {httpGet: {path: /health, port: metrics}}, livenessProbe: {httpGet: {path: /health, port: metrics}}, readinessProbe: {httpGet: {path: /ready, port: metrics}},
 securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, runAsNonRoot: true, capabilities: {drop: [ALL]}}}`
		deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: d}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {terminationGracePeriodSeconds: 30, containers: [` + container + `]}}}}`
		service    = `{apiVersion: v1, kind: Service, metadata: {name: e}, spec: {selector: {a: b}, ports: [{port: 9002}]}}`
		pool       = `{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: p}, spec: {selector: {matchLabels: {x: z}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: e, port: {number: 9002}}}}`
		rule       = `{apiVersion: monitoring.coreos.com/v1, kind: PrometheusRule, metadata: {name: r}, spec: {groups: [{name: g, rules: [{alert: A, expr: 'sum by (class) (rate(infera_router_outcomes_total{class="success"}[5m]))'}]}]}}`
	)
	good := deployment + "\n---\n" + service + "\n---\n" + pool + "\n---\n" + rule
	for _, tt := range []struct{ name, was, is, want string }{
		{"nothing is wrong", "", "", ""},
		{"a field of Kubernetes that does not exist", "template:", "tmplate:", "unknown field"},
		{"a number where a list stands", "ports: [{port: 9002}]", "ports: 9002", "cannot unmarshal"},
		{"a kind that nobody defines", "kind: Service", "kind: Servics", "no kind"},
		{"a version that is gone", "inference.networking.k8s.io/v1,", "inference.networking.k8s.io/v9,", "no kind"},
		{"an unknown field of a custom resource", "targetPorts:", "targetPort: 1, targetPorts:", "unknown field spec.targetPort"},
		{"a custom resource's port out of range", "number: 8000", "number: 80000", "65535"},
		{"a missing field of a custom resource", "targetPorts: [{number: 8000}], ", "", "targetPorts"},
		{"a flag that does not exist", "--grpc-port=9002", "--grpc-prt=9002", "epp has no flag --grpc-prt"},
		{"a flag of the other program", "--grpc-port=9002", "--router-mode=direct", "epp has no flag --router-mode"},
		{"a variable that nobody reads", "image: i,", "image: i, env: [{name: INFERA_NOPE, value: x}],", "reads no variable INFERA_NOPE"},
		{"a writable root", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "readOnlyRootFilesystem"},
		{"a probe of another path", "path: /ready", "path: /readyz", "/readyz"},
		{"a probe of a port that is not there", "/ready, port: metrics", "/ready, port: metric", "has not"},
		{"a kill in the middle of the drain", "--grpc-port=9002", "--drain-timeout=300", "killed after 30"},
		{"a sidecar that does not keep running", "containers: [", "containers: [{name: x, image: i}], initContainers: [", "restartPolicy Always"},
		{"a Service without Pods", "selector: {a: b}", "selector: {a: c}", "matches no Pod template"},
		{"a pool whose picker listens elsewhere", "port: {number: 9002}", "port: {number: 9003}", "has no port 9003"},
		{"a pool without a picker", "{name: e, port: {number: 9002}}", "{name: f, port: {number: 9002}}", "there is no Service f"},
		{"a pool of Pods that do not listen there", "matchLabels: {x: z}", "matchLabels: {a: b}", "have no port 8000"},
		{"a series that does not exist", "infera_router_outcomes_total{", "infera_router_outcome_total{", "no series infera_router_outcome_total"},
		{"a label that the series has not", `{class="success"}`, `{kind="success"}`, "no label kind"},
		{"a grouping by such a label", "sum by (class)", "sum by (kind)", "has the label kind"},
		{"an expression that does not parse", "sum by (class) (rate(", "sum by (class) rate((", "unparsed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(good, tt.was, tt.is, 1)
			objects, err := parse("test", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			var faults []string
			for _, o := range objects {
				faults = append(faults, known.faults(o)...)
				faults = append(faults, house.faults(o)...)
			}
			faults = append(faults, crossFaults(objects)...)
			got := strings.Join(faults, "\n")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("faults %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheChartRefusesValues(t *testing.T) {
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"a key that does not exist":           "epp: {replica: 3}",
		"no replicas":                         "epp: {replicas: 0}",
		"a port out of range":                 "epp: {ports: {grpc: 70000}}",
		"a gateway that is not known":         "provider: {name: nginx}",
		"policies without a Gateway":          "provider: {name: kgateway}",
		"a route without a Gateway":           "route: {create: true}",
		"etcd without an address":             "discovery: {backend: etcd}",
		"a worker without an image":           "workers: [{name: w, port: 1}]",
		"a pool past the forwarders":          "{pool: {targetPort: 30000}, workers: [{name: w, image: i, port: 30000}]}",
		"an argument that is no flag":         "epp: {extraArgs: [kv-overlap-weight=3]}",
		"a failure mode that does not exist":  "pool: {failureMode: Open}",
		"a duration without a unit":           "provider: {streamIdleTimeout: '300'}",
		"a broker's address without a scheme": "nats: {url: 'broker:4222'}",
	} {
		var values map[string]any
		if err := sigsyaml.Unmarshal([]byte(text), &values); err != nil {
			t.Fatal(err)
		}
		if _, err := renderChart(c, values); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestAChangedFileOfKustomizeIsNoticed: the files that come from the chart must
// not be edited, nor be forgotten when the chart changes.
func TestAChangedFileOfKustomizeIsNoticed(t *testing.T) {
	copied := t.TempDir()
	if err := os.CopyFS(filepath.Join(copied, "manifests"), os.DirFS(filepath.Join(root, "manifests"))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(copied, baseFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err = os.WriteFile(file, append(text, "\n# mine\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	sets, err := renderAll(copied, false)
	if err != nil {
		t.Fatal(err)
	}
	if faults := strings.Join(sets[0].faults, "\n"); faults != baseFile+" is not what the chart says: run make manifests" {
		t.Errorf("faults %q", faults)
	}
}
