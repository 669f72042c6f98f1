package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// pickerFile is an EndpointPickerConfig, as far as it is read (GIE
// apix/config/v1alpha1, llm-d-router apix/config). Keys that are not known are
// refused.
type pickerFile struct {
	APIVersion         string          `yaml:"apiVersion"`
	Kind               string          `yaml:"kind"`
	FeatureGates       []string        `yaml:"featureGates"`
	Plugins            []pickerPlugin  `yaml:"plugins"`
	SchedulingProfiles []pickerProfile `yaml:"schedulingProfiles"`
	SaturationDetector pluginRef       `yaml:"saturationDetector"`
	DataLayer          map[string]any  `yaml:"dataLayer"`
	FlowControl        *pickerFlow     `yaml:"flowControl"`
	Parser             pluginRef       `yaml:"parser"`
	RequestHandler     map[string]any  `yaml:"requestHandler"`
}

type pickerPlugin struct {
	Name       string         `yaml:"name"`
	Type       string         `yaml:"type"`
	Parameters map[string]any `yaml:"parameters"`
}

type pickerProfile struct {
	Name    string `yaml:"name"`
	Plugins []struct {
		PluginRef string   `yaml:"pluginRef"`
		Weight    *float64 `yaml:"weight"`
	} `yaml:"plugins"`
}

type pluginRef struct {
	PluginRef string `yaml:"pluginRef"`
}

// pickerFlow is the flow control; what concerns single priorities is passed over,
// with a warning.
type pickerFlow struct {
	MaxBytes          string         `yaml:"maxBytes"`
	MaxRequests       string         `yaml:"maxRequests"`
	DefaultRequestTTL string         `yaml:"defaultRequestTTL"`
	Rest              map[string]any `yaml:",inline"`
}

// readPickerConfig reads what --config-file or --config-text names into src.
func (c *Config) readPickerConfig(src *sources) error {
	if c.Program&EPP == 0 {
		return nil
	}
	given := func(name string) string {
		if text, ok := src.given[name]; ok {
			return text
		}
		text, _ := src.env(Env(name))
		return text
	}
	raw, where := []byte(given("config-text")), "--config-text"
	if path := given("config-file"); path != "" {
		if len(raw) > 0 {
			return errors.New("--config-file and --config-text: give one of them")
		}
		var err error
		if raw, err = os.ReadFile(path); err != nil { //nolint:gosec // the operator names the file
			return fmt.Errorf("--config-file: %w", err)
		}
		where = "--config-file " + path
	}
	if len(raw) == 0 {
		return nil
	}
	m, err := mapPickerConfig(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	src.other, c.mapped = m.settings, m.notes
	return nil
}

// mapPickerConfig reads an EndpointPickerConfig and says which settings it comes
// to. The error names everything that is not understood.
func mapPickerConfig(raw []byte) (*mapping, error) {
	var f pickerFile
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	if err := dec.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		if strings.Contains(err.Error(), "not found in type") {
			err = errors.New(strings.ReplaceAll(err.Error(), "not found in type config.pickerFile", "is not known in an EndpointPickerConfig"))
		}
		return nil, err
	}
	if f.Kind != "EndpointPickerConfig" || !slices.Contains([]string{"inference.networking.x-k8s.io/v1alpha1", "llm-d.ai/v1alpha1"}, f.APIVersion) {
		return nil, fmt.Errorf("kind %q of %q: want an EndpointPickerConfig of inference.networking.x-k8s.io/v1alpha1 or llm-d.ai/v1alpha1; settings of Pointsman's own go to --config", f.Kind, f.APIVersion)
	}
	m := &mapping{settings: map[string]entry{}, plugins: map[string]pickerPlugin{}}
	m.declare(f.Plugins)
	m.references(&f)
	m.profiles(f.SchedulingProfiles)
	m.control(&f)
	return m, errors.Join(m.errs...)
}

// mapping is what an EndpointPickerConfig comes to.
type mapping struct {
	settings map[string]entry // by setting
	notes    []string         // for the operator
	errs     []error
	plugins  map[string]pickerPlugin // by name
}

func (m *mapping) set(name, text, from string) { m.settings[name] = entry{key: from, text: text} }

func (m *mapping) note(format string, args ...any) {
	m.notes = append(m.notes, "EndpointPickerConfig: "+fmt.Sprintf(format, args...))
}

func (m *mapping) fault(format string, args ...any) {
	m.errs = append(m.errs, fmt.Errorf(format, args...))
}

// declare takes the plugins by name, and refuses those that are not known here.
func (m *mapping) declare(plugins []pickerPlugin) {
	for _, p := range plugins {
		if p.Name == "" {
			p.Name = p.Type
		}
		if _, twice := m.plugins[p.Name]; twice {
			m.fault("plugin %q is there twice", p.Name)
		}
		known, ok := pluginTypes[p.Type]
		if !ok {
			m.fault("plugin %q: type %q is not known here; known are %s", p.Name, p.Type, strings.Join(pluginNames(), ", "))
			continue
		}
		m.plugins[p.Name] = p
		switch known.part {
		case partPrefixDecider:
			if n, ok := whole(p.Parameters["nonCachedTokens"]); ok && n > 0 {
				m.set("pd-skip-prefill-tokens", strconv.Itoa(n-1), p.Name)
			}
		case partConcurrency:
			if n, ok := whole(p.Parameters["maxConcurrency"]); ok && n > 0 {
				m.set("fc-ep-max-inflight", strconv.Itoa(n), p.Name)
			}
		case partSession:
			m.set("session-affinity", "all", p.Name)
		case partIgnored:
			m.note("plugin %q (%s) has no effect: %s", p.Name, p.Type, known.note)
		case partBuiltIn, partQueue, partUsage, partPrefix, partLatency, partRandom, partBest:
		}
	}
}

// references refuses names of plugins that are not declared.
func (m *mapping) references(f *pickerFile) {
	check := func(ref, where string) {
		if _, ok := m.plugins[ref]; !ok && ref != "" && !slices.ContainsFunc(f.Plugins, func(p pickerPlugin) bool { return p.Name == ref || p.Type == ref }) {
			m.fault("%s refers to a plugin %q that is not declared", where, ref)
		}
	}
	for _, p := range f.SchedulingProfiles {
		for _, ref := range p.Plugins {
			check(ref.PluginRef, "scheduling profile "+p.Name)
		}
	}
	check(f.SaturationDetector.PluginRef, "saturationDetector")
	check(f.Parser.PluginRef, "parser")
}
