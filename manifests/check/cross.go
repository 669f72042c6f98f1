package main

import "fmt"

// crossFaults returns the references among the objects of one set that lead
// nowhere. What other installations bring (Gateways, Secrets, the CRDs) is not
// among them.
func crossFaults(all []object) []string {
	var faults []string
	add := func(o object, format string, args ...any) {
		faults = append(faults, o.String()+": "+fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	for _, o := range all {
		id := o.str("apiVersion") + " " + o.str("kind") + " " + o.str("metadata", "namespace") + "/" + o.str("metadata", "name")
		if seen[id] {
			add(o, "stands twice")
		}
		seen[id] = true
	}
	for _, o := range all {
		switch o.str("kind") {
		case "Service":
			if selector, _ := o.at("spec", "selector").(map[string]any); !selects(all, selector) {
				add(o, "its selector matches no Pod template")
			}
		case "PodDisruptionBudget", "ServiceMonitor", "PodMonitor":
			selectorFaults(all, o, "selector", add)
		case "NetworkPolicy":
			selectorFaults(all, o, "podSelector", add)
		case "HorizontalPodAutoscaler":
			want(all, o, o.str("spec", "scaleTargetRef", "kind"), o.str("spec", "scaleTargetRef", "name"), add)
		case "RoleBinding":
			want(all, o, o.str("roleRef", "kind"), o.str("roleRef", "name"), add)
			for _, s := range items(o.content["subjects"]) {
				want(all, o, s.str("kind"), s.str("name"), add)
			}
		case "InferencePool":
			poolFaults(all, o, add)
		case "HTTPRoute":
			for _, rule := range items(o.at("spec", "rules")) {
				for _, ref := range items(rule.content["backendRefs"]) {
					want(all, o, ref.str("kind"), ref.str("name"), add)
				}
			}
		case "Deployment":
			workloadFaults(all, o, add)
		}
	}
	return faults
}

type adder = func(o object, format string, args ...any)

func find(all []object, kind, name string) (object, bool) {
	for _, o := range all {
		if o.str("kind") == kind && o.str("metadata", "name") == name {
			return o, true
		}
	}
	return object{}, false
}

func want(all []object, o object, kind, name string, add adder) {
	if kind == "" {
		kind = "Service"
	}
	if _, ok := find(all, kind, name); !ok {
		add(o, "there is no %s %s", kind, name)
	}
}

// selects says whether some Pod template has the labels.
func selects(all []object, labels map[string]any) bool {
	for _, o := range all {
		pod, _ := o.at("spec", "template", "metadata", "labels").(map[string]any)
		if o.str("kind") == "InferaDeployment" {
			return true // its operator makes the Pods
		}
		if pod != nil && subset(labels, pod) {
			return true
		}
		if o.str("kind") == "Service" && len(labels) > 0 && subset(labels, asMap(o.at("metadata", "labels"))) {
			return true // a ServiceMonitor's
		}
	}
	return false
}

func subset(part, whole map[string]any) bool {
	for key, value := range part {
		if whole[key] != value {
			return false
		}
	}
	return len(part) > 0
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func selectorFaults(all []object, o object, key string, add adder) {
	if labels := asMap(o.at("spec", key, "matchLabels")); !selects(all, labels) {
		add(o, "its %s matches no Pod template", key)
	}
}

// poolFaults holds an InferencePool to the endpoint picker that it names and,
// when the set has workers, to their ports.
func poolFaults(all []object, pool object, add adder) {
	name := pool.str("spec", "endpointPickerRef", "name")
	service, ok := find(all, "Service", name)
	if !ok {
		add(pool, "there is no Service %s", name)
		return
	}
	port, served := fmt.Sprint(pool.at("spec", "endpointPickerRef", "port", "number")), false
	for _, p := range items(service.at("spec", "ports")) {
		served = served || fmt.Sprint(p.content["port"]) == port
	}
	if !served {
		add(pool, "the Service %s has no port %s", name, port)
	}
	labels := asMap(pool.at("spec", "selector", "matchLabels"))
	for _, o := range all {
		if o.str("kind") != "Deployment" || !subset(labels, asMap(o.at("spec", "template", "metadata", "labels"))) {
			continue
		}
		open := map[string]bool{}
		spec := podSpec(o)
		for _, c := range append(items(spec["initContainers"]), items(spec["containers"])...) {
			for _, p := range items(c.content["ports"]) {
				open[fmt.Sprint(p.content["containerPort"])] = true
			}
		}
		for _, target := range items(pool.at("spec", "targetPorts")) {
			if !open[fmt.Sprint(target.content["number"])] {
				add(pool, "the Pods of %s have no port %v", o.str("metadata", "name"), target.content["number"])
			}
		}
	}
}

// workloadFaults checks what a workload mounts and runs as.
func workloadFaults(all []object, o object, add adder) {
	if !subset(asMap(o.at("spec", "selector", "matchLabels")), asMap(o.at("spec", "template", "metadata", "labels"))) {
		add(o, "its selector does not match its own Pods")
	}
	spec := podSpec(o)
	if account, _ := spec["serviceAccountName"].(string); account != "" {
		want(all, o, "ServiceAccount", account, add)
	}
	volumes := map[string]bool{}
	for _, v := range items(spec["volumes"]) {
		volumes[v.str("name")] = true
		if name := v.str("configMap", "name"); name != "" {
			want(all, o, "ConfigMap", name, add)
		}
	}
	for _, c := range append(items(spec["initContainers"]), items(spec["containers"])...) {
		for _, m := range items(c.content["volumeMounts"]) {
			if !volumes[m.str("name")] {
				add(o, "%s mounts the volume %s, which the Pod has not", c.str("name"), m.str("name"))
			}
		}
	}
}
