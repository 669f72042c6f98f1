package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/VictoriaMetrics/metricsql"
)

// house is what this repository says of itself: its flags and its series.
type house struct {
	flags  map[string]map[string]bool // by program, the flags
	envs   map[string]bool            // the variables that set flags
	series map[string]map[string]bool // by name, the labels
}

// loadHouse reads the generated pages, which the repository's own tests hold to
// the code.
func loadHouse(root string) (*house, error) {
	h := &house{
		flags: map[string]map[string]bool{"epp": {}, "forwarder": {}}, envs: map[string]bool{},
		series: map[string]map[string]bool{"up": {"job": true, "instance": true}},
	}
	rows, err := table(filepath.Join(root, "docs/flags.md"), "`--")
	if err != nil {
		return nil, err
	}
	for _, cells := range rows {
		name := strings.Trim(cells[0], "`-")
		for program := range strings.SplitSeq(cells[1], ", ") {
			h.flags[program][name] = true
			if cells[3] == "bool" {
				h.flags[program]["no-"+name] = true
			}
		}
		for env := range strings.FieldsSeq(cells[2]) {
			h.envs[strings.Trim(env, "`")] = true
		}
	}
	if rows, err = table(filepath.Join(root, "docs/metrics.md"), "`"); err != nil {
		return nil, err
	}
	for _, cells := range rows {
		labels := map[string]bool{}
		for label := range strings.SplitSeq(cells[2], ",") {
			labels[label] = true
		}
		name := strings.Trim(cells[0], "`")
		h.series[name] = labels
		if cells[1] == "histogram" {
			h.series[name+"_sum"], h.series[name+"_count"] = labels, labels
			h.series[name+"_bucket"] = maps.Clone(labels)
			h.series[name+"_bucket"]["le"] = true
		}
	}
	return h, nil
}

// table returns the cells of a page's table rows whose first cell begins so.
func table(file, first string) ([][]string, error) {
	data, err := os.ReadFile(file) //nolint:gosec // a page of the checkout
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "| "+first) {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	if len(rows) < 10 {
		return nil, fmt.Errorf("%s: only %d rows: has its form changed?", file, len(rows))
	}
	return rows, nil
}

// faults returns what in an object does not fit the programs.
func (h *house) faults(o object) []string {
	var faults []string
	add := func(format string, args ...any) {
		faults = append(faults, o.String()+": "+fmt.Sprintf(format, args...))
	}
	switch o.str("kind") {
	case "Deployment", "StatefulSet", "DaemonSet", "Pod":
		h.podFaults(podSpec(o), add)
	case "PrometheusRule":
		h.ruleFaults(o, add)
	case "ConfigMap":
		data, _ := o.content["data"].(map[string]any)
		for name, text := range data {
			if strings.HasSuffix(name, ".json") {
				h.dashboardFaults(text.(string), add)
			}
		}
	}
	return faults
}

func podSpec(o object) map[string]any {
	spec, _ := o.at("spec", "template", "spec").(map[string]any)
	if spec == nil {
		spec, _ = o.content["spec"].(map[string]any)
	}
	return spec
}

// program returns which of our programs a container runs, "" for none.
func program(c object) string {
	command := texts(c.content["command"])
	switch {
	case len(command) == 0:
		return ""
	case slices.Contains(command, "infera.gaie"):
		return "epp"
	case slices.Contains(command, "infera.server"):
		return "forwarder"
	}
	name := filepath.Base(command[0])
	if name == "epp" || name == "forwarder" {
		return name
	}
	return ""
}

func texts(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, item := range list {
		out = append(out, fmt.Sprint(item))
	}
	return out
}

func items(v any) []object {
	list, _ := v.([]any)
	out := make([]object, 0, len(list))
	for _, item := range list {
		m, _ := item.(map[string]any)
		out = append(out, object{content: m})
	}
	return out
}

func (h *house) podFaults(spec map[string]any, add func(string, ...any)) {
	inits := items(spec["initContainers"])
	for i, c := range append(inits, items(spec["containers"])...) {
		prog := program(c)
		if prog == "" {
			continue
		}
		name := c.str("name")
		if i < len(inits) && c.str("restartPolicy") != "Always" {
			add("%s is an init container without restartPolicy Always, so nothing after it starts", name)
		}
		for _, arg := range append(texts(c.content["command"]), texts(c.content["args"])...) {
			flag, _, _ := strings.Cut(arg, "=")
			if strings.HasPrefix(flag, "--") && !h.flags[prog][flag[2:]] {
				add("%s has no flag %s", prog, flag)
			}
		}
		for _, env := range items(c.content["env"]) {
			if n := env.str("name"); (strings.HasPrefix(n, "INFERA_") || strings.HasPrefix(n, "LLB_")) && !h.envs[n] {
				add("%s reads no variable %s", prog, n)
			}
		}
		containerFaults(c, add)
		graceFaults(c, spec, add)
	}
}

// containerFaults holds a container of ours to what any of them must have.
func containerFaults(c object, add func(string, ...any)) {
	name := c.str("name")
	for path, want := range map[string]any{
		"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
	} {
		if c.at("securityContext", path) != want {
			add("%s: securityContext.%s is not %v", name, path, want)
		}
	}
	if drop := texts(c.at("securityContext", "capabilities", "drop")); !slices.Equal(drop, []string{"ALL"}) {
		add("%s keeps capabilities", name)
	}
	if c.at("resources", "requests", "cpu") == nil || c.at("resources", "limits", "memory") == nil {
		add("%s has no CPU request or no memory limit", name)
	}
	ports := map[string]bool{}
	for _, p := range items(c.content["ports"]) {
		ports[p.str("name")] = true
	}
	for probe, path := range map[string]string{"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"} {
		if got := c.str(probe, "httpGet", "path"); got != path {
			add("%s: %s asks %q, want %s", name, probe, got, path)
		}
		if port := c.str(probe, "httpGet", "port"); !ports[port] {
			add("%s: %s asks at the port %q, which the container has not", name, probe, port)
		}
	}
}

// graceFaults demands that a Pod is not killed while the program drains.
func graceFaults(c object, spec map[string]any, add func(string, ...any)) {
	need := 0.0
	for _, arg := range texts(c.content["args"]) {
		flag, value, _ := strings.Cut(arg, "=")
		if flag == "--drain-delay" || flag == "--drain-timeout" {
			s, _ := strconv.ParseFloat(value, 64)
			need += s
		}
	}
	grace, _ := strconv.ParseFloat(fmt.Sprint(spec["terminationGracePeriodSeconds"]), 64)
	if grace <= need {
		add("%s drains for %v s and is killed after %v s", c.str("name"), need, grace)
	}
}

func (h *house) ruleFaults(o object, add func(string, ...any)) {
	for _, group := range items(o.at("spec", "groups")) {
		for _, rule := range items(group.content["rules"]) {
			h.exprFaults(rule.str("alert"), rule.str("expr"), add)
		}
	}
}

func (h *house) dashboardFaults(text string, add func(string, ...any)) {
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(text), &board); err != nil {
		add("dashboard: %v", err)
	}
	if len(board.Panels) == 0 {
		add("the dashboard has no panels")
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			h.exprFaults(panel.Title, strings.ReplaceAll(target.Expr, "$__rate_interval", "1m"), add)
		}
	}
}

// everywhere are the labels that Prometheus and the monitors add.
var everywhere = map[string]bool{"job": true, "instance": true, "namespace": true, "pod": true} //nolint:gochecknoglobals // an immutable table

// exprFaults checks that an expression parses, that its series are ours and that
// these have the labels by which it selects.
func (h *house) exprFaults(where, expr string, add func(string, ...any)) {
	parsed, err := metricsql.Parse(expr)
	if err != nil {
		add("%s: %q: %v", where, expr, err)
		return
	}
	used := map[string]bool{}
	metricsql.VisitAll(parsed, func(e metricsql.Expr) {
		m, ok := e.(*metricsql.MetricExpr)
		if !ok {
			return
		}
		for _, filters := range m.LabelFilterss {
			var labels map[string]bool
			for _, f := range filters {
				if f.Label != "__name__" {
					continue
				}
				var known bool
				if labels, known = h.series[f.Value]; !known {
					add("%s: there is no series %s", where, f.Value)
				}
				maps.Copy(used, labels)
			}
			for _, f := range filters {
				if f.Label != "__name__" && !labels[f.Label] && !everywhere[f.Label] {
					add("%s: the series has no label %s: %s", where, f.Label, expr)
				}
			}
		}
	})
	for _, match := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(match[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !used[label] && !everywhere[label] {
				add("%s: no series here has the label %s: %s", where, label, expr)
			}
		}
	}
}

var grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring) \(([^)]*)\)`)
