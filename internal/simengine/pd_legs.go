package simengine

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"pointsman/fleet"
)

// pdLeg is what a request says about its partner, checked.
type pdLeg struct {
	room    string
	from    string // decode: host:port of the prefill engine's side port
	engine  string // ID of the prefill engine, with its rank if it has ranks; "" when the protocol has none
	decode  string // prefill: the worker that the KV cache is meant for; "" when the protocol names none
	answers bool   // prefill: the answer tells where the KV cache lies
	handoff any    // that
}

// fields are the members that kv_transfer_params must have, no more and no less.
// "infera_retention" may always be there (Infera engine_priority.py).
type fields map[string]func(json.RawMessage) bool

func is(want string) func(json.RawMessage) bool {
	return func(raw json.RawMessage) bool { return string(raw) == want }
}

func text(raw json.RawMessage) bool { return len(raw) > 2 && raw[0] == '"' }

func positive(raw json.RawMessage) bool {
	n, err := strconv.Atoi(string(raw))
	return err == nil && n > 0
}

func index(raw json.RawMessage) bool {
	n, err := strconv.Atoi(string(raw))
	return err == nil && n >= 0
}

func list(raw json.RawMessage) bool { return len(raw) > 2 && raw[0] == '[' }

func matching(pattern string) func(json.RawMessage) bool {
	re := regexp.MustCompile(`^"` + pattern + `"$`)
	return func(raw json.RawMessage) bool { return re.Match(raw) }
}

const (
	uuid = `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`
	yes  = "true"
	no   = "false"
	null = "null"
)

func (f fields) with(more fields) fields {
	out := maps.Clone(f)
	maps.Copy(out, more)
	return out
}

// wanted returns the members of kv_transfer_params that a leg must have.
func wanted(protocol string, role fleet.Role) fields {
	produce := fields{"do_remote_decode": is(yes), "do_remote_prefill": is(no)}
	consume := fields{"do_remote_decode": is(no), "do_remote_prefill": is(yes)}
	sizes := fields{"remote_dp_size": positive, "tp_size": positive, "remote_tp_size": positive}
	nowhere := fields{"remote_engine_id": is(null), "remote_block_ids": is(null)}
	there := fields{"remote_engine_id": text, "remote_block_ids": list}
	prefill := role == fleet.Prefill
	switch protocol {
	case vllmMooncake:
		id := fields{"transfer_id": matching(`xfer-0{16}[0-7][0-9a-f]{15}`)}
		if prefill {
			return produce.with(id)
		}
		return consume.with(id).with(fields{"remote_bootstrap_addr": matching(`http://[^"]+`), "remote_engine_id": text})
	case vllmMoriWrite:
		id := fields{"transfer_id": matching(`tx-0{16}[0-7][0-9a-f]{15}`)}
		if prefill {
			return produce.with(id).with(sizes).with(nowhere)
		}
		return consume.with(id).with(sizes).with(nowhere)
	case vllmMoriRead:
		id := fields{"transfer_id": matching(`tx-` + uuid)}
		if prefill {
			return produce.with(id).with(sizes).with(nowhere)
		}
		return consume.with(id).with(sizes).with(there)
	case vllmNixl:
		where := fields{"remote_host": is(null), "remote_port": is(null)}
		if prefill {
			return produce.with(nowhere).with(where)
		}
		return consume.with(there).with(fields{"remote_request_id": text, "remote_host": text, "remote_port": positive, "tp_size": positive})
	}
	where := fields{"remote_dp_size": positive, "remote_tp_size": positive, "remote_handshake_port": positive, "remote_host": text, "remote_port": positive}
	if prefill {
		return produce.with(where).with(nowhere)
	}
	return consume.with(where).with(there).with(fields{
		"transfer_id": matching(`tx-` + uuid), "first_token_id": index, "dp_rank": index, "tp_size": positive,
		"local_slot_index": index, "remote_dp_rank": index,
	})
}

// leg reads and checks what b says about the pair; nil for a request that is not
// one of a pair. It changes b where a prefill engine generates less than it is
// asked to.
func (e *Engine) leg(r *http.Request, b body) (*pdLeg, *apiError) {
	if !e.paired() {
		return nil, nil //nolint:nilnil // no leg is a valid result
	}
	var l *pdLeg
	var err *apiError
	if e.cfg.PD.Protocol == sglangBootstrap {
		l, err = e.bootstrapLeg(r, b)
	} else {
		l, err = e.transferLeg(r, b)
	}
	if l == nil || err != nil {
		return nil, err
	}
	if err := e.side.claim(l.room); err != nil {
		return nil, err
	}
	return l, nil
}

// bootstrapLeg reads a leg of sglang-bootstrap.
func (e *Engine) bootstrapLeg(r *http.Request, b body) (*pdLeg, *apiError) {
	var at struct {
		host string
		port int
		room int64
		rank int
	}
	at.port, at.room, at.rank = -1, -1, -1
	for name, dst := range map[string]any{"bootstrap_host": &at.host, "bootstrap_port": &at.port, "bootstrap_room": &at.room, "disagg_prefill_dp_rank": &at.rank} {
		if err := b.get(name, dst); err != nil {
			return nil, err
		}
	}
	if at.host == "" || at.port <= 0 || at.room < 0 {
		return nil, badRequest("bootstrap_room", "this is a %v engine: give bootstrap_host, bootstrap_port and bootstrap_room", e.cfg.Role)
	}
	l := &pdLeg{room: strconv.FormatInt(at.room, 10), from: net.JoinHostPort(at.host, itoa(at.port))}
	if e.cfg.Role == fleet.Decode {
		if at.rank >= 0 {
			l.engine = "dp" + itoa(at.rank)
		}
		return l, nil
	}
	if own := net.JoinHostPort(e.advertised(), itoa(e.SidePort())); l.from != own {
		return nil, badRequest("bootstrap_host", "the bootstrap address is %s, and this engine's is %s", l.from, own)
	}
	if b["disagg_prefill_dp_rank"] != nil {
		return nil, badRequest("disagg_prefill_dp_rank", "disagg_prefill_dp_rank is for decode engines")
	}
	if size := int64(e.cfg.PD.Ranks); size > 1 {
		rank := at.room % size
		if h := r.Header.Get("X-Data-Parallel-Rank"); h != "" && h != strconv.FormatInt(rank, 10) {
			return nil, badRequest("bootstrap_room", "room %d is on rank %d of %d, and the request on rank %s", at.room, rank, size, h)
		}
		l.engine = fmt.Sprintf("dp%d", rank)
	}
	b["max_tokens"] = json.RawMessage("1")
	delete(b, "max_completion_tokens")
	delete(b, "min_tokens")
	return l, nil
}

// transferLeg reads a leg of the protocols of vLLM and ATOM.
func (e *Engine) transferLeg(r *http.Request, b body) (*pdLeg, *apiError) {
	var params map[string]json.RawMessage
	if err := b.get("kv_transfer_params", &params); err != nil {
		return nil, err
	}
	prefill := e.cfg.Role == fleet.Prefill
	if !prefill && params["do_remote_prefill"] == nil {
		return nil, nil //nolint:nilnil // a decode engine that computes the prompt itself
	}
	want := wanted(e.cfg.PD.Protocol, e.cfg.Role)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !want[name](params[name]) {
			return nil, badRequest("kv_transfer_params", "this is a %v engine of %s: %s is %s", e.cfg.Role, e.cfg.PD.Protocol, name, orAbsent(params[name]))
		}
	}
	for name := range params {
		if want[name] == nil && name != "infera_retention" {
			return nil, badRequest("kv_transfer_params", "this is a %v engine of %s: %s does not belong here", e.cfg.Role, e.cfg.PD.Protocol, name)
		}
	}
	if !prefill {
		return e.consumer(r, params)
	}
	if err := onlyPrefill(b); err != nil {
		return nil, err
	}
	return e.producer(r, params)
}

func orAbsent(raw json.RawMessage) string {
	if raw == nil {
		return "absent"
	}
	return string(raw)
}

// onlyPrefill checks that a leg asks for one token and no stream.
func onlyPrefill(b body) *apiError {
	for name, want := range map[string]string{"max_tokens": "1", "stream": no, "max_completion_tokens": "1", "stream_options": ""} {
		raw, given := b[name]
		switch {
		case !given && (name == "max_completion_tokens" || name == "stream_options"):
		case string(raw) != want:
			return badRequest(name, "a prefill leg has %s %q, not %s", name, want, orAbsent(raw))
		}
	}
	return nil
}

// producer reads a prefill leg whose fields are right.
func (e *Engine) producer(r *http.Request, params map[string]json.RawMessage) (*pdLeg, *apiError) {
	rank, err := e.rankOf(r.Header)
	if err != nil {
		return nil, err
	}
	l := &pdLeg{room: plainText(params["transfer_id"]), engine: e.side.engineID}
	if rank >= 0 {
		l.engine += "_dp" + itoa(rank)
	}
	host, port := e.advertised(), e.SidePort()
	blocks := [][]int{{1, 2, 3}}
	switch e.cfg.PD.Protocol {
	case vllmMoriWrite, vllmMoriRead:
		peers, err := moriPeers(r.Header)
		if err != nil {
			return nil, err
		}
		if own := net.JoinHostPort(host, itoa(port)); peers.prefill != own {
			return nil, badRequest("", "the request ID names the prefill engine %s, and this is %s", peers.prefill, own)
		}
		if l.answers = e.cfg.PD.Protocol == vllmMoriRead; l.answers {
			l.handoff = map[string]any{"transfer_id": l.room, "remote_engine_id": l.engine, "remote_block_ids": blocks}
		}
	case vllmNixl:
		l.room, l.answers = rand.Text(), true
		l.handoff = map[string]any{
			"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": blocks, "remote_engine_id": l.engine,
			"remote_request_id": l.room, "remote_host": host, "remote_port": port, "tp_size": 1,
		}
	case atomMooncake:
		l.room, l.answers = "tx-"+newUUID(), true
		l.decode = net.JoinHostPort(plainText(params["remote_host"]), string(params["remote_port"]))
		l.handoff = map[string]any{
			"transfer_id": l.room, "remote_engine_id": l.engine, "remote_block_ids": blocks, "do_remote_prefill": true, "do_remote_decode": false,
			"remote_host": host, "remote_port": e.port(), "first_token_id": 42, "dp_rank": max(0, rank), "tp_size": 1,
			"remote_handshake_port": port, "local_slot_index": 0,
		}
	}
	return l, nil
}

// consumer reads a decode leg whose fields are right.
func (e *Engine) consumer(r *http.Request, params map[string]json.RawMessage) (*pdLeg, *apiError) {
	l := &pdLeg{room: plainText(params["transfer_id"]), engine: plainText(params["remote_engine_id"])}
	switch e.cfg.PD.Protocol {
	case vllmMooncake:
		l.from = strings.TrimPrefix(plainText(params["remote_bootstrap_addr"]), "http://")
	case vllmMoriWrite, vllmMoriRead:
		peers, err := moriPeers(r.Header)
		if err != nil {
			return nil, err
		}
		if own := net.JoinHostPort(e.advertised(), itoa(e.SidePort())); peers.decode != own {
			return nil, badRequest("", "the request ID names the decode engine %s, and this is %s", peers.decode, own)
		}
		l.from = peers.prefill
	case vllmNixl:
		l.room = plainText(params["remote_request_id"])
		l.from = net.JoinHostPort(plainText(params["remote_host"]), string(params["remote_port"]))
	case atomMooncake:
		l.from = net.JoinHostPort(plainText(params["remote_host"]), string(params["remote_handshake_port"]))
		if string(params["remote_dp_rank"]) != string(params["dp_rank"]) {
			return nil, badRequest("kv_transfer_params", "remote_dp_rank is %s and dp_rank %s", params["remote_dp_rank"], params["dp_rank"])
		}
	}
	return l, nil
}

// peers are the side ports that a MoRI request ID names.
type peers struct{ prefill, decode string }

// moriPeers reads the request ID that both legs of a MoRI pair carry.
func moriPeers(h http.Header) (peers, *apiError) {
	id := h.Get("X-Request-Id")
	m := regexp.MustCompile(`^___prefill_addr_host:(.+),handshake:(\d+),notify:(\d+)___decode_addr_host:(.+),handshake:(\d+),notify:(\d+)_[0-9a-f]{32}$`).FindStringSubmatch(id)
	if m == nil {
		return peers{}, badRequest("", "the request ID %q does not name the pair", id)
	}
	return peers{m[1] + ":" + m[2], m[4] + ":" + m[5]}, nil
}

func plainText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	s := hex.EncodeToString(b[:])
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
