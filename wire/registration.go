package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"pointsman/fleet"
)

// ErrRecord is in the chain of every error of [DecodeRegistration].
var ErrRecord = errors.New("unusable worker record")

// RecordError says which field of a registration made no sense.
type RecordError struct {
	// Field is the JSON name of the field, "json" when the value is no JSON
	// object, "worker_id" also for a bad key. It is one of a fixed set, so it
	// may be a metric's label.
	Field string
	Err   error
}

// Error names the field and what is wrong with it.
func (e *RecordError) Error() string { return fmt.Sprintf("%s: %v", e.Field, e.Err) }

// Unwrap makes errors.Is(err, ErrRecord) hold.
func (e *RecordError) Unwrap() []error { return []error{ErrRecord, e.Err} }

// ErrClaim is wrapped by the error about a record whose worker_id is not the one that
// its key registers: it may claim the ID of another worker.
var ErrClaim = errors.New("not the ID that the key registers")

// Reason returns the label under which a registration that could not be used
// is counted: the field of a [RecordError], else "other".
func Reason(err error) string {
	if re, ok := errors.AsType[*RecordError](err); ok {
		return re.Field
	}
	return "other"
}

// Limits of what is taken for a worker, far above what any real one has.
const (
	maxRecord = 1 << 20 // bytes; etcd's own limit is 1.5 MiB
	maxName   = 512     // bytes of an ID, a model or an engine name
	maxRanks  = 1024
	maxCanary = 4096
	maxNames  = 1024 // aliases, or adapters, of one worker
)

// DecodeRegistration reads a worker's registration, the JSON object that
// Infera's launchers write to etcd and to the Pod annotation
// (infera/common/registration.py). key is the etcd key behind the prefix, ""
// when the record has none.
//
// Only worker_id and url are required; null is the same as absent, and fields
// that are not known are passed over. Any field that is there must make sense,
// else the error is a [RecordError] and the worker nil. Field names are exact,
// and of a repeated field the last counts, as in Python.
//
// Two rules where Infera's routers leave phantoms or keep stale records (§11):
//   - D10: a record whose worker_id is not what its key registers is refused with
//     [ErrClaim]: a deletion would name only the key, and who may write one key
//     could take another worker's place.
//   - D11: a status that is not known takes the worker out of the candidates:
//     the worker is returned with status Draining, together with an error that
//     says so. It is the one case in which both are non-nil.
//
// Some fields are ours and passed over by Infera: forwarder_endpoint (where a
// gateway reaches the worker's forwarder), kv_replay_endpoint (where the
// publisher of KV events answers requests for past ones), ping_subject (a NATS
// subject at which the worker answers), model_aliases and lora_adapters (lists of
// further names that requests may ask for).
func DecodeRegistration(key string, value []byte) (*fleet.Worker, error) {
	r, err := parseRecord(value)
	if err != nil {
		return nil, err
	}
	w := &fleet.Worker{DPRank: -1}
	for _, step := range [...]func(*fleet.Worker){
		func(w *fleet.Worker) { r.identity(w, key) },
		r.address, r.served, r.disaggregation, r.ranks, r.events, r.canary,
	} {
		step(w)
		if r.err != nil {
			return nil, r.err
		}
	}
	return w, r.status(w)
}

// record is a registration's fields. The first fault stays in err.
type record struct {
	fields map[string]json.RawMessage
	err    error
}

func parseRecord(value []byte) (*record, error) {
	r := &record{}
	switch {
	case len(value) > maxRecord:
		r.fail("json", fmt.Errorf("%d bytes, more than %d", len(value), maxRecord))
	case !utf8.Valid(value):
		r.fail("json", errors.New("not UTF-8"))
	default:
		if err := json.Unmarshal(value, &r.fields); err != nil {
			r.fail("json", err)
		} else if r.fields == nil {
			r.fail("json", errors.New("null instead of an object"))
		}
	}
	return r, r.err
}

func (r *record) fail(field string, err error) {
	if r.err == nil {
		r.err = &RecordError{Field: field, Err: err}
	}
}

func (r *record) identity(w *fleet.Worker, key string) {
	id := r.text("worker_id", maxName)
	if id == "" {
		r.fail("worker_id", errors.New("missing"))
		return
	}
	if key != "" && key != id {
		r.fail("worker_id", ErrClaim)
		return
	}
	if err := checkID(id); err != nil {
		r.fail("worker_id", err)
		return
	}
	w.ID = id
}

// checkID refuses what could not stand in a header or a log line. IDs are
// opaque otherwise.
func checkID(id string) error {
	if len(id) > maxName {
		return fmt.Errorf("longer than %d bytes", maxName)
	}
	for _, c := range id {
		if c <= ' ' || c == 0x7f || c == utf8.RuneError {
			return fmt.Errorf("%q has a character that no ID can have", id)
		}
	}
	return nil
}

func (r *record) address(w *fleet.Worker) {
	raw := r.text("url", 2048)
	if raw == "" {
		r.fail("url", errors.New("missing"))
		return
	}
	if err := SetURL(w, raw); err != nil {
		r.fail("url", err)
	}
}

// SetURL sets w's URL, Host and Port from raw, an http or https URL without a
// query. A missing port is the scheme's.
func SetURL(w *fleet.Worker, raw string) error {
	u, err := url.Parse(raw)
	if err != nil {
		return fmt.Errorf("not a URL: %w", errors.Unwrap(err))
	}
	port := map[string]int{"http": 80, "https": 443}[u.Scheme]
	switch {
	case port == 0:
		return fmt.Errorf("%q: want http://host:port", raw)
	case u.Hostname() == "":
		return fmt.Errorf("%q has no host", raw)
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return fmt.Errorf("%q: want only scheme, host, port and path", raw)
	}
	if p := u.Port(); p != "" {
		if port, err = parsePort(p); err != nil {
			return fmt.Errorf("%q: %w", raw, err)
		}
	}
	if err := checkID(u.Hostname()); err != nil {
		return err
	}
	w.URL, w.Host, w.Port = strings.TrimRight(raw, "/"), u.Hostname(), port
	return nil
}

func parsePort(s string) (int, error) {
	p, err := strconv.ParseUint(s, 10, 16)
	if err != nil || p == 0 {
		return 0, fmt.Errorf("port %q is not in 1..65535", s)
	}
	return int(p), nil
}

func (r *record) served(w *fleet.Worker) {
	w.Model = r.text("model_name", maxName)
	w.Engine = fleet.Engine(r.text("engine", maxName))
	if w.Engine == "" {
		w.Engine = fleet.SGLang
	}
	switch t := r.text("request_transport", maxName); t {
	case "":
		w.Transport = "http"
	case "http", "nats":
		w.Transport = t
	default:
		r.fail("request_transport", fmt.Errorf("%q: want http or nats", t))
	}
	w.Aliases, w.Adapters = r.names("model_aliases"), r.names("lora_adapters")
	if ep := r.text("forwarder_endpoint", maxName); ep != "" {
		if err := checkHostPort(ep); err != nil {
			r.fail("forwarder_endpoint", err)
		}
		w.Endpoint = ep
	}
	if subject := r.text("ping_subject", maxName); subject != "" {
		if err := checkSubject(subject); err != nil {
			r.fail("ping_subject", err)
		}
		w.PingSubject = subject
	}
}

// checkSubject refuses what would ask others than the worker.
func checkSubject(s string) error {
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%q: a subject has no spaces", s)
	}
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || token == "*" || token == ">" {
			return fmt.Errorf("%q: want a subject without wildcards and empty tokens", s)
		}
	}
	return nil
}

// names reads a list of names that requests may ask for; nil for none.
func (r *record) names(field string) (names []string) {
	raw := r.value(field)
	if raw == nil {
		return nil
	}
	err := json.Unmarshal(raw, &names)
	if err != nil || len(names) > maxNames || slices.ContainsFunc(names, func(s string) bool { return s == "" || len(s) > maxName }) {
		r.fail(field, fmt.Errorf("want at most %d names of 1 to %d bytes", maxNames, maxName))
	}
	return names
}

func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q: want host:port", s)
	}
	if host == "" {
		return fmt.Errorf("%q has no host", s)
	}
	if err = checkID(host); err != nil {
		return err
	}
	_, err = parsePort(port)
	return err
}

func (r *record) disaggregation(w *fleet.Worker) {
	role, err := ParseRole(r.text("disagg_mode", maxName))
	if err != nil {
		r.fail("disagg_mode", err)
	}
	w.Role = role
	meta := r.object("disagg_meta")
	w.Protocol = meta.text("protocol", maxName)
	if params := meta.object("params"); len(params.fields) > 0 {
		w.Params = meta.fields["params"]
	}
	r.inherit("disagg_meta", meta)
}

// ParseRole reads Infera's spelling of a role; "" is mixed.
func ParseRole(s string) (fleet.Role, error) {
	switch s {
	case "", "mixed":
		return fleet.Mixed, nil
	case "prefill":
		return fleet.Prefill, nil
	case "decode":
		return fleet.Decode, nil
	}
	return fleet.Mixed, fmt.Errorf("%q: want mixed, prefill or decode", s)
}

func (r *record) ranks(w *fleet.Worker) {
	w.DPSize = r.number("dp_size", 0, maxRanks, 0)
	w.DPRank = r.number("dp_rank", 0, maxRanks, -1)
}

func (r *record) events(w *fleet.Worker) {
	w.BlockSize = r.number("kv_block_size", 0, maxBlockSize, 0)
	w.KVEvents = r.publisher("kv_events_endpoint", w)
	w.KVReplay = r.publisher("kv_replay_endpoint", w)
}

func (r *record) publisher(field string, w *fleet.Worker) string {
	raw := r.text(field, maxName)
	if raw == "" {
		return ""
	}
	ep, err := EventsEndpoint(raw, w.Host, w.Ranks())
	if err != nil {
		r.fail(field, err)
	}
	return ep
}

// EventsEndpoint checks the ZeroMQ address of a publisher, tcp://host:port,
// with one port for each of ranks ranks. An address that only says where the
// publisher listens (tcp://*:port, 0.0.0.0, ::) gets host instead.
func EventsEndpoint(endpoint, host string, ranks int) (string, error) {
	addr, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("%q: want tcp://host:port", endpoint)
	}
	h, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("%q: want tcp://host:port", endpoint)
	}
	port, err := parsePort(p)
	if err != nil {
		return "", fmt.Errorf("%q: %w", endpoint, err)
	}
	if port+ranks-1 > 65535 {
		return "", fmt.Errorf("%q: no room for %d ranks above port %d", endpoint, ranks, port)
	}
	if h == "*" || h == "0.0.0.0" || h == "::" {
		return "tcp://" + net.JoinHostPort(host, p), nil
	}
	if h == "" {
		return "", fmt.Errorf("%q has no host", endpoint)
	}
	return endpoint, checkID(h)
}

// canary reads the one part of the nested plane that is used; Infera's own
// routers use no other (§4.7).
func (r *record) canary(w *fleet.Worker) {
	kv := r.object("kv")
	if raw := kv.value("tokenizer_canary"); raw != nil {
		if err := json.Unmarshal(raw, &w.Canary); err != nil || len(w.Canary) > maxCanary {
			kv.fail("tokenizer_canary", fmt.Errorf("want at most %d token ids", maxCanary))
		}
	}
	r.inherit("kv", kv)
}

func (r *record) status(w *fleet.Worker) error {
	switch s := r.text("status", maxName); s {
	case "", "active":
	case "draining":
		w.Status = fleet.Draining
	case "dead":
		w.Status = fleet.Dead
	default:
		w.Status = fleet.Draining
		r.fail("status", fmt.Errorf("%q: want active, draining or dead; the worker gets no requests", s))
	}
	if r.err != nil {
		w.Status = fleet.Draining
	}
	return r.err
}
