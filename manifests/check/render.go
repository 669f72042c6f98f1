package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	sigsyaml "sigs.k8s.io/yaml"
)

// object is one Kubernetes object and where it came from.
type object struct {
	from    string // file or template
	content map[string]any
}

func (o object) str(path ...string) string {
	s, _ := o.at(path...).(string)
	return s
}

// at returns what is at the path, nil for nothing.
func (o object) at(path ...string) any {
	var node any = o.content
	for _, key := range path {
		m, _ := node.(map[string]any)
		node = m[key]
	}
	return node
}

func (o object) String() string {
	return fmt.Sprintf("%s: %s %s", o.from, o.str("kind"), o.str("metadata", "name"))
}

// rendered is what one value set or overlay comes to.
type rendered struct {
	name    string
	objects []object
	faults  []string // what was found wrong with the rendering itself
}

const (
	chartDir   = "manifests/chart"
	valuesDir  = "manifests/check/values"
	overlayDir = "manifests/kustomize/overlays"
	// ownOverlayDir has overlays that use the components as a user would.
	ownOverlayDir = "manifests/check/overlays"
	release       = "pointsman" // also the name prefix of what kustomize installs
)

// source is what a file of kustomize is rendered from.
type source struct {
	values string // in this directory
	part   part
}

// part is which of the chart's objects a file has.
type part uint8

const (
	whole   part = iota
	added        // those that the base has not
	sidecar      // the forwarder of a worker, as a patch of any Deployment
)

// generated are the files of kustomize that are rendered from the chart, so that
// there is one truth.
var generated = map[string]source{ //nolint:gochecknoglobals // an immutable table
	baseFile: {"generated/base.yaml", whole},
	"manifests/kustomize/overlays/istio/provider.yaml":         {"generated/istio.yaml", added},
	"manifests/kustomize/overlays/envoy-gateway/provider.yaml": {"generated/envoy-gateway.yaml", added},
	"manifests/kustomize/overlays/kgateway/provider.yaml":      {"generated/kgateway.yaml", added},
	"manifests/kustomize/overlays/kind/provider.yaml":          {"generated/kind.yaml", whole},
	"manifests/kustomize/components/forwarder/sidecar.yaml":    {"generated/sidecar.yaml", sidecar},
}

const baseFile = "manifests/kustomize/base/pointsman.yaml"

// renderAll renders the chart with each file of values, and each overlay.
func renderAll(root string, update bool) ([]rendered, error) {
	c, err := loader.Load(filepath.Join(root, chartDir))
	if err != nil {
		return nil, fmt.Errorf("chart: %w", err)
	}
	stale, err := generate(root, c, update)
	if err != nil {
		return nil, err
	}
	sets := []rendered{{name: "generated", faults: stale}}
	files, err := filepath.Glob(filepath.Join(root, valuesDir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		set := rendered{name: "chart-" + strings.TrimSuffix(filepath.Base(file), ".yaml")}
		if set.objects, err = renderFile(c, file); err != nil {
			set.faults = append(set.faults, err.Error())
		}
		sets = append(sets, set)
	}
	var dirs []string
	for _, glob := range []string{overlayDir + "/*", ownOverlayDir + "/*"} {
		found, bad := filepath.Glob(filepath.Join(root, glob))
		if bad != nil {
			return nil, bad
		}
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		set := rendered{name: "kustomize-" + filepath.Base(dir)}
		if set.objects, err = kustomize(dir); err != nil {
			set.faults = append(set.faults, err.Error())
		}
		sets = append(sets, set)
	}
	return sets, nil
}

// renderFile renders the chart with the values of a file.
func renderFile(c *chart.Chart, file string) ([]object, error) {
	values, err := common.ReadValuesFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return renderChart(c, values)
}

// renderChart returns the chart's objects as `helm template` would, schema
// validation included.
func renderChart(c *chart.Chart, values map[string]any) ([]object, error) {
	options := common.ReleaseOptions{Name: release, Namespace: "models", Revision: 1, IsInstall: true}
	top, err := util.ToRenderValues(c, values, options, common.DefaultCapabilities)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	files, err := engine.Engine{Strict: true}.RenderWithContext(context.Background(), c, top)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	var all []object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".tpl") {
			continue
		}
		objects, err := parse(filepath.Base(name), []byte(files[name]))
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
}

// parse returns the objects of a file of YAML documents. A key that stands twice
// is an error.
func parse(from string, data []byte) ([]object, error) {
	var all []object
	docs := yaml.NewYAMLReader(newReader(data))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		var content map[string]any
		if err := sigsyaml.UnmarshalStrict(doc, &content); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", from, err, doc)
		}
		if len(content) > 0 {
			all = append(all, object{from, content})
		}
	}
}

// kustomize builds the overlay in dir, without plugins, network or helm.
func kustomize(dir string) ([]object, error) {
	result, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("kustomize: %w", err)
	}
	data, err := result.AsYaml()
	if err != nil {
		return nil, err
	}
	return parse(filepath.Base(dir), data)
}

const notice = "# Rendered from manifests/chart with manifests/check/%s; do not edit. make manifests writes it.\n"

// generate compares the files of kustomize that come from the chart, or writes
// them. It returns one fault for each that is not what the chart says.
func generate(root string, c *chart.Chart, update bool) ([]string, error) {
	var stale []string
	base, err := sourceObjects(root, c, generated[baseFile])
	if err != nil {
		return nil, err
	}
	for _, file := range slices.Sorted(maps.Keys(generated)) {
		from := generated[file]
		objects, bad := sourceObjects(root, c, from)
		if bad != nil {
			return nil, bad
		}
		var out bytes.Buffer
		fmt.Fprintf(&out, notice, from.values)
		for _, o := range objects {
			if from.part == added && slices.ContainsFunc(base, func(b object) bool { return reflect.DeepEqual(b.content, o.content) }) {
				continue
			}
			text, bad := sigsyaml.Marshal(o.content)
			if bad != nil {
				return nil, bad
			}
			fmt.Fprintf(&out, "---\n%s", text)
		}
		path := filepath.Join(root, file)
		if update {
			err = os.WriteFile(path, out.Bytes(), 0o644) //nolint:gosec // a file of the repository
		} else if was, look := os.ReadFile(path); look != nil || !bytes.Equal(was, out.Bytes()) { //nolint:gosec // a file of the checkout
			stale = append(stale, file+" is not what the chart says: run make manifests")
			err = ignoreMissing(look)
		}
		if err != nil {
			return nil, err
		}
	}
	return stale, nil
}

// sourceObjects renders what a generated file is made of.
func sourceObjects(root string, c *chart.Chart, from source) ([]object, error) {
	objects, err := renderFile(c, filepath.Join(root, "manifests/check", from.values))
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		neutral(o)
	}
	if from.part != sidecar {
		return objects, nil
	}
	for _, o := range objects {
		if inits := podSpec(o)["initContainers"]; inits != nil {
			return []object{{o.from, map[string]any{
				"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "any"},
				"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"initContainers": inits}}},
			}}}, nil
		}
	}
	return nil, errors.New("the chart has no worker with a sidecar")
}

// neutral removes what only Helm's own installations have.
func neutral(o object) {
	labels, _ := o.at("metadata", "labels").(map[string]any)
	delete(labels, "app.kubernetes.io/managed-by")
	if pod, _ := o.at("spec", "template", "metadata", "labels").(map[string]any); pod != nil {
		delete(pod, "app.kubernetes.io/managed-by")
	}
	if subjects, _ := o.content["subjects"].([]any); subjects != nil {
		for _, s := range subjects {
			delete(s.(map[string]any), "namespace") // kustomize puts the overlay's in
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
