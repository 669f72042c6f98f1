package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"pointsman/internal/spell"
)

// entry is one value of the file.
type entry struct {
	key  string // as written
	text string
}

// file is what --config names: settings of the process and defaults of its
// pools, and a section of settings for each pool. Both are keyed by the names of
// settings.
type file struct {
	text  []byte
	top   map[string]entry
	pools map[string]map[string]entry
}

// poolsKey is the key of the pools' sections.
const poolsKey = "pools"

// readFile reads the YAML file that --config or its variable names: one mapping
// from flag names to values, and under "pools" one such mapping for each pool.
func readFile(given map[string]string, env func(string) (string, bool), rows []setting) (file, error) {
	path, ok := given["config"]
	if !ok {
		path, _ = env(Env("config"))
	}
	if path == "" {
		return file{}, nil
	}
	raw, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return file{}, fmt.Errorf("config file: %w", err)
	}
	f, err := decodeFile(raw, rows)
	f.text = raw
	if err != nil { // what could be read is looked through for further faults
		return f, fmt.Errorf("config file %s: %w", path, err)
	}
	return f, nil
}

// decodeFile reads the text of a file strictly: the error names every key that
// is unknown, misspelt, wrongly cased, without a value or given twice.
func decodeFile(raw []byte, rows []setting) (file, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(raw, &doc); err != nil {
		return file{}, err
	}
	if len(doc.Content) == 0 {
		return file{}, nil
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return file{}, fmt.Errorf("line %d: want one mapping from flag names to values", root.Line)
	}
	f := file{pools: map[string]map[string]entry{}}
	var errs []error
	flat := &yaml.Node{Kind: yaml.MappingNode, Line: root.Line}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if key, val := root.Content[i], root.Content[i+1]; key.Value == poolsKey {
			errs = append(errs, f.decodePools(val, rows))
		} else {
			flat.Content = append(flat.Content, key, val)
		}
	}
	keys := slices.DeleteFunc(slices.Clone(rows), func(s setting) bool { return s.name == "config" })
	var err error
	f.top, err = decodeSection(flat, keys)
	return f, errors.Join(append(errs, err)...)
}

func (f *file) decodePools(node *yaml.Node, rows []setting) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s: want a mapping from pool names to their settings", node.Line, poolsKey)
	}
	own := slices.DeleteFunc(slices.Clone(rows), func(s setting) bool { return s.process })
	var errs []error
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, section := node.Content[i], node.Content[i+1]
		if _, dup := f.pools[name.Value]; dup {
			errs = append(errs, fmt.Errorf("line %d: %s.%s: given twice", name.Line, poolsKey, name.Value))
		}
		if section.Kind != yaml.MappingNode {
			errs = append(errs, fmt.Errorf("line %d: %s.%s: want a mapping from keys to values", section.Line, poolsKey, name.Value))
			continue
		}
		entries, err := decodeSection(section, own)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.%s: %w", poolsKey, name.Value, err))
		}
		f.pools[name.Value] = entries
	}
	return errors.Join(errs...)
}

// decodeSection reads a mapping whose keys are all of the rows given.
func decodeSection(node *yaml.Node, rows []setting) (map[string]entry, error) {
	out := make(map[string]entry, len(node.Content)/2)
	var errs []error
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, val := node.Content[i], node.Content[i+1]
		switch {
		case val.Kind != yaml.ScalarNode:
			errs = append(errs, fmt.Errorf("line %d: %s: want a single value", val.Line, key.Value))
			continue
		case val.Tag == "!!null":
			errs = append(errs, fmt.Errorf("line %d: %s: has no value; leave the key out for the default", val.Line, key.Value))
			continue
		}
		name, ok := nameOf(key.Value, rows)
		if !ok {
			errs = append(errs, fmt.Errorf("line %d: unknown key %q%s", key.Line, key.Value, nearestKey(key.Value, rows)))
			continue
		}
		if first, dup := out[name]; dup {
			errs = append(errs, fmt.Errorf("line %d: %s: given twice, %s before", key.Line, key.Value, first.key))
		}
		out[name] = entry{key: key.Value, text: val.Value}
	}
	return out, errors.Join(errs...)
}

// nameOf returns the setting that key means: its flag name, with hyphens or
// underscores, or an alias to the letter.
func nameOf(key string, rows []setting) (string, bool) {
	hyphens := strings.ReplaceAll(key, "_", "-")
	for i := range rows {
		if rows[i].name == hyphens || slices.Contains(rows[i].aliases, key) {
			return rows[i].name, true
		}
	}
	return "", false
}

// nearestKey names the valid key that key is most like.
func nearestKey(key string, rows []setting) string {
	folded := strings.ToLower(strings.ReplaceAll(key, "_", "-"))
	best, at := 1<<30, ""
	for i := range rows {
		for _, k := range append([]string{rows[i].name}, rows[i].aliases...) {
			if d := spell.Distance(folded, strings.ToLower(strings.ReplaceAll(k, "_", "-"))); d < best {
				best, at = d, k
			}
		}
	}
	if best <= max(3, len(at)/3) {
		return fmt.Sprintf("; did you mean %q?", at)
	}
	return fmt.Sprintf("; the nearest valid key is %q", at)
}
