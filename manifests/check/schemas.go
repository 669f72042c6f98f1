package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

// published are the modules that carry the schemas of the objects that are not
// Kubernetes' own, as their projects publish them. The sum is checked, so that
// what is read is what was reviewed. They are downloaded and not imported.
var published = []struct{ module, sum, glob string }{ //nolint:gochecknoglobals // an immutable table
	{"sigs.k8s.io/gateway-api-inference-extension@v1.6.0", "h1:cjtwMJYcTnLXBYE5ffR1/hHhn7U1aIFfe2RITYmOXVA=", "config/crd/bases/*.yaml"},
	{"sigs.k8s.io/gateway-api@v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc=", "config/crd/standard/*.yaml"},
	{"istio.io/api@v1.32.0", "h1:37mJvg9I0biYZAEQF+MATs4FNeCpXEIVO3LFpVb6iNM=", "kubernetes/customresourcedefinitions.gen.yaml"},
	{"github.com/envoyproxy/gateway@v1.9.1", "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY=", "charts/gateway-helm/charts/crds/crds/generated/*.yaml"},
}

// documented are schemas of our own words for objects whose projects publish no
// module: every field that their documentation names and our manifests use, and
// no other.
const documented = "manifests/check/schemas/*.yaml"

// definition is one version of a kind.
type definition struct {
	structural *schema.Structural
	validator  validation.SchemaValidator
}

// schemas knows the kinds that are not Kubernetes' own, by apiVersion and kind.
type schemas struct {
	kinds map[string]definition
	core  runtime.Decoder
	crds  []object // as published
}

// loadSchemas reads all definitions, fetching the modules that are not in the
// module cache.
func loadSchemas(root string) (*schemas, error) {
	s := &schemas{
		kinds: map[string]definition{},
		core:  serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer(),
	}
	globs := []string{filepath.Join(root, documented)}
	for _, m := range published {
		dir, err := fetch(m.module, m.sum)
		if err != nil {
			return nil, err
		}
		globs = append(globs, filepath.Join(dir, m.glob))
	}
	for _, glob := range globs {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("%s: no schemas: %w", glob, errors.Join(err, os.ErrNotExist))
		}
		for _, file := range files {
			if err := s.add(file); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return s, nil
}

// fetch returns the directory of a module in the module cache.
func fetch(module, sum string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "go", "mod", "download", "-json", module) //nolint:gosec // one of published
	cmd.Dir = os.TempDir()                                                                     // outside of this module: nothing of it changes
	data, err := cmd.Output()
	var got struct{ Dir, Sum, Error string }
	if err = errors.Join(err, json.Unmarshal(data, &got)); err != nil {
		return "", fmt.Errorf("download %s: %s: %w", module, got.Error, err)
	}
	if got.Sum != sum {
		return "", fmt.Errorf("download %s: sum %s, want %s", module, got.Sum, sum)
	}
	return got.Dir, nil
}

// add takes the custom resource definitions of a file. Other objects of it are
// left out.
func (s *schemas) add(file string) error {
	data, err := os.ReadFile(file) //nolint:gosec // of the checkout, or of a module whose sum was checked
	if err != nil {
		return err
	}
	for doc := range bytes.SplitSeq(data, []byte("\n---")) {
		if !bytes.Contains(doc, []byte("kind: CustomResourceDefinition")) {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := sigsyaml.Unmarshal(doc, &crd); err != nil {
			return err
		}
		objects, err := parse(filepath.Base(file), doc)
		if err != nil {
			return err
		}
		s.crds = append(s.crds, objects...)
		for _, version := range crd.Spec.Versions {
			if err := s.addVersion(&crd, &version); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *schemas) addVersion(crd *apiextensionsv1.CustomResourceDefinition, version *apiextensionsv1.CustomResourceDefinitionVersion) error {
	if version.Schema == nil {
		return nil
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return err
	}
	structural, err := schema.NewStructural(&props)
	if err != nil {
		return fmt.Errorf("%s: %w", crd.Name, err)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		return fmt.Errorf("%s: %w", crd.Name, err)
	}
	s.kinds[crd.Spec.Group+"/"+version.Name+" "+crd.Spec.Names.Kind] = definition{structural, validator}
	return nil
}

// faults returns what is wrong with an object: unknown and doubled fields, wrong
// types, values out of range, a kind that nobody defines.
func (s *schemas) faults(o object) []string {
	version, kind := o.str("apiVersion"), o.str("kind")
	def, custom := s.kinds[version+" "+kind]
	if !custom {
		data, err := json.Marshal(o.content)
		if err == nil {
			_, _, err = s.core.Decode(data, nil, nil)
		}
		if err != nil {
			return []string{fmt.Sprintf("%s: %v", o, err)}
		}
		return nil
	}
	var faults []string
	for _, e := range validation.ValidateCustomResource(field.NewPath(""), o.content, def.validator) {
		faults = append(faults, fmt.Sprintf("%s: %v", o, e))
	}
	unknown := pruning.PruneWithOptions(runtime.DeepCopyJSON(numbers(o.content)), def.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		faults = append(faults, fmt.Sprintf("%s: unknown field %s", o, path))
	}
	return faults
}

// numbers returns content as the API server decodes it, with int64 for integers.
func numbers(content map[string]any) map[string]any {
	data, err := json.Marshal(content)
	if err != nil {
		return content
	}
	var out map[string]any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if dec.Decode(&out) != nil {
		return content
	}
	return plain(out).(map[string]any)
}

func plain(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = plain(v[key])
		}
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case json.Number:
		if i, err := v.Int64(); err == nil && !strings.Contains(v.String(), ".") {
			return i
		}
		f, _ := v.Float64()
		return f
	}
	return v
}

func newReader(data []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(data)) }
