package rules_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"pointsman/config"
	"pointsman/trust"
)

// container is what a manifest says of a container.
type container struct {
	Name    string
	Command []string
	Args    []string
}

// TestTheManifestsStartThePrograms reads the command lines of every committed
// manifest as the programs would. What the objects themselves are worth is shown
// by make manifests-check, which needs Helm and kustomize.
func TestTheManifestsStartThePrograms(t *testing.T) {
	started := map[config.Program]int{}
	err := filepath.WalkDir(filepath.Join(root, "manifests"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" || strings.Contains(path, "templates") {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
			var object struct {
				Spec struct {
					Template struct {
						Spec struct {
							InitContainers []container `yaml:"initContainers"`
							Containers     []container
						}
					}
				}
			}
			if err := dec.Decode(&object); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				continue // of another form, such as a list
			}
			pod := object.Spec.Template.Spec
			for _, c := range append(pod.InitContainers, pod.Containers...) {
				starts(t, path, c, started)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, prog := range []config.Program{config.EPP, config.Forwarder} {
		if started[prog] < 2 {
			t.Errorf("only %d manifests start the %v", started[prog], prog)
		}
	}
}

func starts(t *testing.T, path string, c container, started map[config.Program]int) {
	t.Helper()
	if len(c.Command) == 0 {
		return
	}
	prog, ours := map[string]config.Program{"/epp": config.EPP, "/forwarder": config.Forwarder}[c.Command[0]]
	if !ours {
		return
	}
	started[prog]++
	none := func(string) (string, bool) { return "", false }
	if _, err := config.Parse(prog, append(c.Command[1:], c.Args...), none, io.Discard); err != nil {
		t.Errorf("%s: %s: %v", path, c.Name, err)
	}
}

// TestClientsCannotSteerThroughOurGateways: every header that the endpoint picker
// sets or takes from a client's request is removed before it by the bootstraps,
// and by the policies of the chart. The protocol's three inputs are for clients.
func TestClientsCannotSteerThroughOurGateways(t *testing.T) {
	read := func(path string) string {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	theirs := []string{
		"x-gateway-inference-fairness-id", "x-gateway-inference-objective", "x-gateway-model-name-rewrite",
		"x-infera-request-id",                                                          // a name for the request
		"x-infera-attempts", "x-conformance-test-served-endpoint", "x-echo-set-header", // of responses, of the conformance suite
	}
	own := []string{trust.HeaderTicket}
	for _, m := range regexp.MustCompile(`"(x-[a-z0-9-]*[a-z0-9])"`).FindAllStringSubmatch(read("extproc/names.go"), -1) {
		if !slices.Contains(theirs, m[1]) {
			own = append(own, m[1])
		}
	}
	if len(own) < 8 {
		t.Fatalf("only %q are named", own)
	}
	for _, path := range []string{"manifests/envoy/original-dst.yaml", "manifests/envoy/override-host.yaml", "manifests/chart/templates/_helpers.tpl"} {
		text := read(path)
		for _, name := range own {
			gone := strings.Contains(text, "remove: "+name+"\n") || strings.Contains(text, "\n- "+name+"\n")
			for _, m := range regexp.MustCompile(`prefix: (x-[a-z-]+)`).FindAllStringSubmatch(text, -1) {
				gone = gone || strings.HasPrefix(name, m[1])
			}
			if !gone {
				t.Errorf("%s lets a client's %s pass", path, name)
			}
		}
	}
}

// TestTheBootstrapsHaveWhatKeepsThemFromHurting looks for the settings without
// which Envoy misbehaves in ways that no validation reports.
func TestTheBootstrapsHaveWhatKeepsThemFromHurting(t *testing.T) {
	for _, name := range []string{"original-dst", "override-host"} {
		data, err := os.ReadFile(filepath.Join(root, "manifests/envoy", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]string{
			"a draining replica is left out even if it is the last": "healthy_panic_threshold: { value: 0 }",
			"no retries":                                    "num_retries: 0",
			"no time limit on a generation":                 "timeout: 0s",
			"silence ends a stream":                         "stream_idle_timeout: 300s",
			"the picker's metadata counts":                  `receiving_namespaces: { untyped: ["envoy.lb"] }`,
			"health by gRPC":                                "grpc_health_check",
			"trailers are read":                             "request_trailer_mode: SEND",
			"room for more than Envoy's 1024 open requests": "max_requests: 40000",
			"no pick, no request":                           "failure_mode_allow: false",
		} {
			if !strings.Contains(string(data), want) {
				t.Errorf("%s: %s: it lacks %q", name, what, want)
			}
		}
	}
}

// TestTheImageIsSmallAndHarmless holds the Dockerfile to what the manifests rely
// on: no system in the image, nobody's root, static programs of any platform.
func TestTheImageIsSmallAndHarmless(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root, "manifests/image/Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, want := range []string{
		"FROM --platform=$BUILDPLATFORM golang:", "ENV CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH", "FROM scratch AS sim\n", "\nFROM scratch\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	for i, stage := range strings.Split(text, "\nFROM scratch")[1:] {
		if !strings.Contains(stage, "\nUSER 65532:65532\n") || strings.Contains(stage, "\nRUN ") {
			t.Errorf("stage %d runs something, or as root:\n%s", i, stage)
		}
	}
	for _, m := range regexp.MustCompile(`\./(?:cmd|manifests)/[a-z0-9/]+`).FindAllString(text, -1) {
		if info, err := os.Stat(filepath.Join(root, m)); err != nil || !info.IsDir() {
			t.Errorf("it builds %s, which is not there: %v", m, err)
		}
	}
}
