package static

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"pointsman/fleet"
	"pointsman/internal/spell"
	"pointsman/wire"
)

// entry is one worker of the file. Everything but url may be left out.
type entry struct {
	URL       string         `yaml:"url"`        // http://host:port of the engine; host:port for short
	ID        string         `yaml:"id"`         // default host:port of url
	Model     string         `yaml:"model"`      // default ""
	Engine    string         `yaml:"engine"`     // default sglang, as in Infera
	Role      string         `yaml:"role"`       // mixed (default), prefill, decode
	Status    string         `yaml:"status"`     // active (default), draining, dead
	Protocol  string         `yaml:"protocol"`   // of prefill and decode
	Params    map[string]any `yaml:"params"`     // of the protocol
	BlockSize int            `yaml:"block_size"` // tokens; default unknown
	KVEvents  string         `yaml:"kv_events"`  // tcp://host:port
	KVReplay  string         `yaml:"kv_replay"`  // tcp://host:port
	DPSize    int            `yaml:"dp_size"`    // default 0: not parallel
	DPRank    *int           `yaml:"dp_rank"`    // default none
	Transport string         `yaml:"transport"`  // http (default), nats
	Endpoint  string         `yaml:"endpoint"`   // host:port of the forwarder; default none
	Ping      string         `yaml:"ping"`       // NATS subject at which the worker answers; default none
}

// Parse reads the workers of a file: a mapping with the one key workers, whose
// value is a list. The error names every fault with its line.
//
// An empty file is a fault, so that one that is just being written never
// empties the fleet; a fleet without workers is "workers: []".
func Parse(content []byte) ([]*fleet.Worker, error) {
	dec := yaml.NewDecoder(bytes.NewReader(content))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New(`empty: a fleet without workers is "workers: []"`)
		}
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	root := doc.Content[0]
	if err := keys(root, []string{"workers"}); err != nil {
		return nil, err
	}
	if len(root.Content) == 0 {
		return nil, errors.New(`no workers: a fleet without any is "workers: []"`)
	}
	list := root.Content[1]
	if list.Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("line %d: workers is no list", list.Line)
	}
	return workers(list)
}

func workers(list *yaml.Node) ([]*fleet.Worker, error) {
	var errs []error
	all := make([]*fleet.Worker, 0, len(list.Content))
	lines := make(map[string]int)
	for _, node := range list.Content {
		w, err := worker(node)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if first, twice := lines[w.ID]; twice {
			errs = append(errs, fmt.Errorf("line %d: worker %q is also on line %d", node.Line, w.ID, first))
		}
		lines[w.ID] = node.Line
		all = append(all, w)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return all, nil
}

func worker(node *yaml.Node) (*fleet.Worker, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if err := keys(node, entryKeys()); err != nil {
		return nil, err
	}
	var e entry
	if err := node.Decode(&e); err != nil {
		return nil, fmt.Errorf("line %d: %w", node.Line, err)
	}
	record, err := e.record()
	if err != nil {
		return nil, fmt.Errorf("line %d: %w", node.Line, err)
	}
	w, err := wire.DecodeRegistration("", record)
	if err != nil {
		if re, ok := errors.AsType[*wire.RecordError](err); ok {
			return nil, fmt.Errorf("line %d: %s: %w", node.Line, yamlName(re.Field), re.Err)
		}
		return nil, fmt.Errorf("line %d: %w", node.Line, err)
	}
	return w, nil
}

// record writes e as a registration, so that the file's workers pass the same
// checks as those of a discovery service.
func (e *entry) record() ([]byte, error) {
	if e.URL == "" {
		return nil, errors.New("url: missing")
	}
	if !strings.Contains(e.URL, "://") {
		e.URL = "http://" + e.URL
	}
	if e.ID == "" {
		var w fleet.Worker
		if err := wire.SetURL(&w, e.URL); err != nil {
			return nil, fmt.Errorf("url: %w", err)
		}
		e.ID = w.Address()
	}
	meta := map[string]any{}
	if e.Protocol != "" {
		meta["protocol"] = e.Protocol
	}
	if e.Params != nil {
		meta["params"] = e.Params
	}
	if e.KVEvents != "" && !strings.Contains(e.KVEvents, "://") {
		e.KVEvents = "tcp://" + e.KVEvents
	}
	if e.KVReplay != "" && !strings.Contains(e.KVReplay, "://") {
		e.KVReplay = "tcp://" + e.KVReplay
	}
	record := map[string]any{
		"worker_id": e.ID, "url": e.URL, "model_name": e.Model, "engine": e.Engine,
		"disagg_mode": e.Role, "disagg_meta": meta, "status": e.Status,
		"kv_events_endpoint": e.KVEvents, "kv_replay_endpoint": e.KVReplay,
		"kv_block_size": e.BlockSize, "dp_size": e.DPSize, "dp_rank": e.DPRank,
		"request_transport": e.Transport, "forwarder_endpoint": e.Endpoint, "ping_subject": e.Ping,
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("params: %w", err)
	}
	return raw, nil
}

// yamlName returns the file's name for a registration's field.
func yamlName(field string) string {
	switch field {
	case "worker_id":
		return "id"
	case "model_name":
		return "model"
	case "disagg_mode":
		return "role"
	case "disagg_meta":
		return "protocol"
	case "kv_events_endpoint":
		return "kv_events"
	case "kv_replay_endpoint":
		return "kv_replay"
	case "kv_block_size":
		return "block_size"
	case "request_transport":
		return "transport"
	case "forwarder_endpoint":
		return "endpoint"
	case "ping_subject":
		return "ping"
	}
	return field
}

func entryKeys() []string {
	fields := reflect.TypeFor[entry]()
	names := make([]string, fields.NumField())
	for i := range names {
		names[i] = fields.Field(i).Tag.Get("yaml")
	}
	return names
}

// keys checks that node is a mapping whose keys are all known.
func keys(node *yaml.Node, known []string) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want a mapping with the keys %s", node.Line, strings.Join(known, ", "))
	}
	var errs []error
	for i := 0; i < len(node.Content); i += 2 {
		key := node.Content[i]
		if near := spell.Nearest(key.Value, known); near != key.Value {
			errs = append(errs, fmt.Errorf("line %d: unknown key %q: did you mean %q?", key.Line, key.Value, near))
		}
	}
	return errors.Join(errs...)
}
