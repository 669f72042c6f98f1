package stack

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"pointsman/manifests/envoy"
)

// Bootstrap chooses one of the sample Envoy configurations.
type Bootstrap uint8

// The two ways a gateway follows a pick.
const (
	OriginalDst  Bootstrap = iota // the endpoint in the header, whatever it is
	OverrideHost                  // an endpoint of the list, with fallbacks
)

// String returns the name of the sample file, without its ending.
func (b Bootstrap) String() string {
	if b == OverrideHost {
		return "override-host"
	}
	return "original-dst"
}

// Addresses is what a bootstrap is filled with; all are host:port.
type Addresses struct {
	Gateway string   // where clients connect
	Admin   string   // Envoy's own pages
	EPPs    []string // ext-proc servers
	Workers []string // the forwarders, for [OverrideHost]

	Unguarded bool // without the filter that removes clients' routing headers
	Unseen    bool // response bodies are not shown to the EPP
	Subsets   bool // requests name their subset: HeaderSubsetText
	Retries   int  // of Envoy, which the samples have not: the EPP's fallbacks need them

	Edit func(bootstrap map[string]any) error // the last change; nil for none
}

// YAML returns the sample bootstrap with its addresses replaced by a.
func (b Bootstrap) YAML(a Addresses) ([]byte, error) {
	sample := envoy.OriginalDst
	if b == OverrideHost {
		sample = envoy.OverrideHost
	}
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(sample), &doc); err != nil {
		return nil, fmt.Errorf("bootstrap %s: %w", b, err)
	}
	err := errors.Join(
		put(doc, a.Admin, "admin"),
		put(doc, a.Gateway, "static_resources", "listeners", 0),
		endpoints(doc, "epp", a.EPPs),
	)
	if b == OverrideHost {
		err = errors.Join(err, endpoints(doc, "workers", a.Workers))
	}
	if a.Retries > 0 {
		err = errors.Join(err, allowRetries(doc, a.Retries))
	}
	if a.Unseen {
		err = errors.Join(err, hideBodies(doc))
	}
	if a.Subsets {
		err = errors.Join(err, hintSubsets(doc))
	}
	if a.Unguarded {
		err = errors.Join(err, dropFilter(doc, "envoy.filters.http.header_mutation"))
	}
	if a.Edit != nil {
		err = errors.Join(err, a.Edit(doc))
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap %s: %w", b, err)
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("bootstrap %s: %w", b, err)
	}
	return out, nil
}

// at returns the object at path, nil when there is none.
func at(doc map[string]any, path ...any) map[string]any {
	var node any = doc
	for _, step := range path {
		switch key := step.(type) {
		case string:
			node = asMap(node)[key]
		case int:
			list, ok := node.([]any)
			if !ok || key >= len(list) {
				return nil
			}
			node = list[key]
		}
	}
	return asMap(node)
}

// Cluster returns a cluster of a bootstrap; nil when there is none of that name.
func Cluster(bootstrap map[string]any, name string) map[string]any {
	clusters, _ := at(bootstrap, "static_resources")["clusters"].([]any)
	for _, c := range clusters {
		if asMap(c)["name"] == name {
			return asMap(c)
		}
	}
	return nil
}

// Filter returns the settings of an HTTP filter of a bootstrap's listener; nil when
// there is none of that name.
func Filter(bootstrap map[string]any, name string) map[string]any {
	filters, _ := manager(bootstrap)["http_filters"].([]any)
	for _, f := range filters {
		if asMap(f)["name"] == name {
			return at(asMap(f), "typed_config")
		}
	}
	return nil
}

// manager returns the settings of the listener's HTTP connection manager.
func manager(doc map[string]any) map[string]any {
	return at(doc, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
}

// allowRetries sets how often Envoy may send a request again.
func allowRetries(doc map[string]any, n int) error {
	policy := at(manager(doc), "route_config", "virtual_hosts", 0, "routes", 0, "route", "retry_policy")
	if policy == nil {
		return errors.New("the sample has no retry policy")
	}
	policy["num_retries"] = n
	return nil
}

// hideBodies keeps the bodies of responses from the EPP.
func hideBodies(doc map[string]any) error {
	if mode := at(Filter(doc, "envoy.filters.http.ext_proc"), "processing_mode"); mode != nil {
		mode["response_body_mode"], mode["response_trailer_mode"] = "NONE", "SKIP"
		return nil
	}
	return errors.New("the sample has no ext_proc filter with a processing mode")
}

// Request headers of a bootstrap with Subsets: endpoints with commas that become
// the protocol's subset hint as one string, or as a list of strings.
const (
	HeaderSubsetText = "x-test-subset-text"
	HeaderSubsetList = "x-test-subset-list"
)

// hints makes the subset hint of the two headers.
//
//nolint:dupword // Lua closes each block with end
const hints = `
function envoy_on_request(handle)
  local key = "x-gateway-destination-endpoint-subset"
  local metadata = handle:streamInfo():dynamicMetadata()
  local text, list = handle:headers():get("` + HeaderSubsetText + `"), handle:headers():get("` + HeaderSubsetList + `")
  if text then
    metadata:set("envoy.lb.subset_hint", key, text)
  end
  if list then
    local items = {}
    for item in list:gmatch("[^,]+") do
      table.insert(items, item)
    end
    metadata:set("envoy.lb.subset_hint", key, items)
  end
end
`

// hintSubsets puts what makes the hints before all other filters.
func hintSubsets(doc map[string]any) error {
	hcm := manager(doc)
	filters, ok := hcm["http_filters"].([]any)
	if !ok {
		return errors.New("the sample has no HTTP filters")
	}
	hcm["http_filters"] = slices.Insert(slices.Clone(filters), 0, any(map[string]any{
		"name": "envoy.filters.http.lua",
		"typed_config": map[string]any{
			"@type":               "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
			"default_source_code": map[string]any{"inline_string": hints},
		},
	}))
	return nil
}

// dropFilter takes the named HTTP filter out of the listener.
func dropFilter(doc map[string]any, name string) error {
	hcm := manager(doc)
	filters, ok := hcm["http_filters"].([]any)
	if !ok {
		return errors.New("the sample has no HTTP filters")
	}
	kept := slices.DeleteFunc(slices.Clone(filters), func(f any) bool { return asMap(f)["name"] == name })
	if len(kept) == len(filters) {
		return fmt.Errorf("the sample has no filter %q", name)
	}
	hcm["http_filters"] = kept
	return nil
}

// put sets the address of the object at path.
func put(doc map[string]any, addr string, path ...any) error {
	object := at(doc, path...)
	if object == nil {
		return fmt.Errorf("the sample has nothing at %v", path)
	}
	socket, err := socketAddress(addr)
	object["address"] = socket
	return err
}

// endpoints replaces the endpoints of the named cluster.
func endpoints(doc map[string]any, cluster string, addrs []string) error {
	list, ok := asMap(doc["static_resources"])["clusters"].([]any)
	if !ok {
		return errors.New("the sample has no clusters")
	}
	hosts := make([]any, 0, len(addrs))
	for _, addr := range addrs {
		socket, err := socketAddress(addr)
		if err != nil {
			return err
		}
		hosts = append(hosts, map[string]any{"endpoint": map[string]any{"address": socket}})
	}
	for _, item := range list {
		c := asMap(item)
		if c["name"] != cluster {
			continue
		}
		c["load_assignment"] = map[string]any{
			"cluster_name": cluster,
			"endpoints":    []any{map[string]any{"lb_endpoints": hosts}},
		}
		return nil
	}
	return fmt.Errorf("the sample has no cluster %q", cluster)
}

func socketAddress(addr string) (map[string]any, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	return map[string]any{"socket_address": map[string]any{"address": host, "port_value": number}}, nil
}

// asMap returns v as an object, nil if it is none. Reading a nil map is fine.
func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// ErrNoEnvoy says that the pinned Envoy is not there.
var ErrNoEnvoy = errors.New("no Envoy")

// EnvoyVersion is the release that tools/fetch-envoy puts into .tools/.
const EnvoyVersion = "1.40.0"

// FindEnvoy returns the path of Envoy below the checkout at root, or of
// $POINTSMAN_ENVOY when that is set. The error says how to get it.
func FindEnvoy(root string) (string, error) {
	path := os.Getenv("POINTSMAN_ENVOY")
	if path == "" {
		path = filepath.Join(root, ".tools", "envoy-"+EnvoyVersion, "envoy")
	}
	if _, err := os.Stat(path); err != nil { //nolint:gosec // where the user says that Envoy is
		return "", fmt.Errorf("%w at %s: run make tools (or tools/fetch-envoy), which needs the network once", ErrNoEnvoy, path)
	}
	return path, nil
}

// writeBootstrap writes the filled-in bootstrap into dir and returns its path.
func writeBootstrap(dir string, b Bootstrap, a Addresses) (string, error) {
	config, err := b.YAML(a)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return "", fmt.Errorf("bootstrap: %w", err)
	}
	return path, nil
}

// envoyArgs is Envoy's command line. Several Envoys on one machine must not share
// hot-restart memory.
func envoyArgs(binary, config string) []string {
	return []string{
		binary, "-c", config,
		"--concurrency", "1", "--disable-hot-restart", "--log-level", "warning",
	}
}
