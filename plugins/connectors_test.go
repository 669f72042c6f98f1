package plugins_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/plugins"
	"pointsman/wire"
)

// leg is what a worker of a running Infera fleet received (captured bytes; the
// values of room and UUID are the capture's own).
type leg struct {
	Worker    string          `json:"worker"`
	Path      string          `json:"path"`
	RequestID string          `json:"request_id"`
	Body      json.RawMessage `json:"body"`
}

func legs(t *testing.T) []leg {
	t.Helper()
	f, err := os.Open("testdata/pd_bodies.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []leg
	for in := bufio.NewScanner(f); in.Scan(); {
		var l leg
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	return all
}

// registered returns the captured registrations of each protocol, prefill first.
func registered(t *testing.T) map[string][2]*fleet.Worker {
	t.Helper()
	raw, err := os.ReadFile("testdata/pd_registrations.json")
	if err != nil {
		t.Fatal(err)
	}
	var records map[string][]json.RawMessage
	if err = json.Unmarshal(raw, &records); err != nil {
		t.Fatal(err)
	}
	out := make(map[string][2]*fleet.Worker)
	for name, pair := range records {
		var ws [2]*fleet.Worker
		for i, r := range pair {
			if ws[i], err = wire.DecodeRegistration("", r); err != nil {
				t.Fatal(err)
			}
		}
		out[name] = ws
	}
	return out
}

func object(t *testing.T, raw []byte) *forward.Object {
	t.Helper()
	o, err := forward.ParseObject(raw)
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	return o
}

// plain takes out what Infera injects for its engines' caches, which is another
// matter than the pairing.
func plain(t *testing.T, raw []byte) string {
	t.Helper()
	none := []forward.Field{{Name: "priority"}, {Name: "infera_retention"}}
	o := object(t, raw)
	if params, ok := o.Object("kv_transfer_params"); ok {
		none = append(none, forward.Field{Name: "kv_transfer_params", Value: params.With(forward.Field{Name: "infera_retention"})})
	}
	return string(o.With(none...))
}

// client returns the body that the client of the capture sent.
func client(t *testing.T, l leg, limit string, stream bool) []byte {
	t.Helper()
	o := object(t, l.Body)
	fields := []forward.Field{
		{Name: "max_tokens", Value: []byte(limit)},
		{Name: "stream", Value: []byte(strconv.FormatBool(stream))},
		{Name: "kv_transfer_params"},
		{Name: "bootstrap_host"},
		{Name: "bootstrap_port"},
		{Name: "bootstrap_room"},
		{Name: "priority"},
		{Name: "infera_retention"},
		{Name: "stream_options"},
	}
	if stream && !strings.Contains(l.Worker, "nats") {
		fields[8].Value = []byte(`{"include_usage":true}`)
	}
	return o.With(fields...)
}

// room returns what the attempt's randomness was, out of a captured leg.
func (l leg) room(t *testing.T, p *forward.Pair) {
	t.Helper()
	o := object(t, l.Body)
	if raw := o.Get("bootstrap_room"); raw != nil {
		p.Room, _ = strconv.ParseUint(string(raw), 10, 64)
	}
	if params, ok := o.Object("kv_transfer_params"); ok {
		id, _ := params.String("transfer_id")
		id = id[strings.IndexByte(id, '-')+1:]
		if strings.Contains(id, "-") {
			raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
			if err != nil {
				t.Fatal(err)
			}
			copy(p.Random[:16], raw)
		} else if id != "" {
			p.Room, _ = strconv.ParseUint(strings.TrimLeft(id, "0"), 16, 64)
		}
	}
	if cut := strings.LastIndexByte(l.RequestID, '_'); cut >= 0 {
		raw, err := hex.DecodeString(l.RequestID[cut+1:])
		if err != nil {
			t.Fatal(err)
		}
		copy(p.Random[16:], raw)
	}
}

func TestLegsAreByteForByteWhatTheFleetSends(t *testing.T) {
	workers := registered(t)
	seen := map[string]int{}
	for _, l := range legs(t) {
		name, side := l.Worker[:len(l.Worker)-2], l.Worker[len(l.Worker)-1:]
		ws := workers[name]
		conn := plugins.Connectors[ws[0].Protocol]
		if conn == nil {
			t.Fatalf("%s: protocol %q has no connector", name, ws[0].Protocol)
		}
		p := &forward.Pair{Prefill: ws[0], Decode: ws[1], PrefillRank: -1, DecodeRank: -1}
		l.room(t, p)
		limit := "8"
		if strings.Contains(name, "nats") {
			limit = "3"
		}
		stream := bytes.Contains(l.Body, []byte(`"stream":true`))
		body := object(t, client(t, l, limit, stream))
		var got []byte
		var err error
		if side == "P" {
			got, err = conn.Prefill(p, body)
		} else {
			got, err = conn.Decode(p, body, answerFor(t, conn, l))
		}
		if err != nil {
			t.Fatalf("%s: %v", l.Worker, err)
		}
		want := plain(t, l.Body)
		if aborter, ok := conn.(forward.Aborter); ok { // its legs have a name, by which they can be given up; Infera's have none
			_, named := aborter.Abort(p, ws[1])
			rid := bytes.TrimPrefix(named, []byte("{"))
			want = strings.TrimSuffix(want, "}") + "," + string(rid)
		}
		if string(got) != want {
			t.Errorf("%s %s\n got %s\nwant %s", l.Worker, l.Path, got, want)
		}
		if id := conn.RequestID(p); id != l.RequestID {
			t.Errorf("%s: request ID %q, want %q", l.Worker, id, l.RequestID)
		}
		seen[ws[0].Protocol+" "+side]++
	}
	for name := range plugins.Connectors {
		if name != "vllm-nixl" && (seen[name+" P"] == 0 || seen[name+" D"] == 0) {
			t.Errorf("%s: %d prefill and %d decode legs compared", name, seen[name+" P"], seen[name+" D"])
		}
	}
}

// answerFor returns the prefill answer that a captured decode leg followed.
func answerFor(t *testing.T, conn forward.Connector, l leg) *forward.Object {
	t.Helper()
	if conn.Topology() == forward.Concurrent {
		return nil
	}
	params, ok := object(t, l.Body).Object("kv_transfer_params")
	if !ok {
		t.Fatalf("%s has no kv_transfer_params", l.Worker)
	}
	given := params.With(
		forward.Field{Name: "remote_dp_size"}, forward.Field{Name: "remote_tp_size"},
		forward.Field{Name: "remote_dp_rank"}, forward.Field{Name: "infera_retention"})
	return object(t, append(append([]byte(`{"id":"x","kv_transfer_params":`), given...), '}'))
}

func TestRanksTravelInTheBodies(t *testing.T) {
	workers := registered(t)
	sg, mc := workers["sglang-bootstrap"], workers["vllm-mooncake"]
	ranked := func(w *fleet.Worker) *fleet.Worker {
		c := *w
		c.DPSize = 4
		return &c
	}
	body := object(t, []byte(`{"model":"m"}`))

	p := &forward.Pair{Prefill: ranked(sg[0]), Decode: sg[1], PrefillRank: 2, DecodeRank: -1, Room: 6}
	got, err := plugins.Connectors["sglang-bootstrap"].Decode(p, body, nil)
	if err != nil || !bytes.Contains(got, []byte(`"bootstrap_room":6,"disagg_prefill_dp_rank":2,"rid":"`)) {
		t.Errorf("sglang: %s, %v", got, err)
	}
	if pre, _ := plugins.Connectors["sglang-bootstrap"].Prefill(p, body); bytes.Contains(pre, []byte("disagg_prefill_dp_rank")) {
		t.Errorf("sglang prefill: %s", pre)
	}
	p = &forward.Pair{Prefill: ranked(mc[0]), Decode: mc[1], PrefillRank: 3, DecodeRank: -1, Room: 7}
	got, err = plugins.Connectors["vllm-mooncake"].Decode(p, body, nil)
	if err != nil || !bytes.Contains(got, []byte(`-07728566baac_dp3"`)) {
		t.Errorf("mooncake: %s, %v", got, err)
	}
}

// TestP9NixlIsServed: Infera's launcher registers vllm-nixl and its router
// answers every request with 500.
func TestP9NixlIsServed(t *testing.T) {
	ws := registered(t)["vllm-nixl"]
	conn := plugins.Connectors[ws[0].Protocol]
	if conn == nil {
		t.Fatal("no connector")
	}
	p := &forward.Pair{Prefill: ws[0], Decode: ws[1], PrefillRank: -1, DecodeRank: -1}
	body := object(t, []byte(`{"model":"m", "stream":true,"stream_options":{},"max_completion_tokens":9,"x":"é\"}"}`))
	got, err := conn.Prefill(p, body)
	want := `{"model":"m", "stream":false,"max_completion_tokens":1,"x":"é\"}","max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,` +
		`"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`
	want = strings.Replace(want, `"m", "stream"`, `"m","stream"`, 1)
	if err != nil || string(got) != want {
		t.Errorf("prefill: %s, %v\nwant %s", got, err, want)
	}
	handoff := `{"remote_engine_id":"e","remote_block_ids":[1,2],"remote_host":"h","remote_port":5600,"new_field":[{}]}`
	got, err = conn.Decode(p, body, object(t, []byte(`{"kv_transfer_params":`+handoff+`}`)))
	if err != nil || !bytes.HasSuffix(got, []byte(`,"kv_transfer_params":`+handoff+`}`)) || !bytes.Contains(got, []byte(`"max_completion_tokens":9`)) {
		t.Errorf("decode: %s, %v", got, err)
	}
}

func TestAnAnswerWithoutHandoffIsAnError(t *testing.T) {
	workers := registered(t)
	for name, conn := range plugins.Connectors {
		if conn.Topology() == forward.Concurrent {
			continue
		}
		ws := workers[name]
		p := &forward.Pair{Prefill: ws[0], Decode: ws[1], PrefillRank: -1, DecodeRank: -1}
		for _, answer := range []string{`{}`, `{"kv_transfer_params":null}`, `{"kv_transfer_params":{}}`, `{"kv_transfer_params":"x"}`} {
			if _, err := conn.Decode(p, object(t, []byte(`{}`)), object(t, []byte(answer))); !errors.Is(err, forward.ErrHandoff) {
				t.Errorf("%s after %s: %v", name, answer, err)
			}
		}
	}
}

func TestARegistrationThatLacksAParameterIsAnError(t *testing.T) {
	for name, conn := range plugins.Connectors {
		if name == "vllm-nixl" || name == "atom-mooncake" {
			continue // they need none
		}
		w := &fleet.Worker{ID: "w", Host: "h", Port: 1, DPRank: -1}
		p := &forward.Pair{Prefill: w, Decode: w, PrefillRank: -1, DecodeRank: -1}
		_, perr := conn.Prefill(p, object(t, []byte(`{}`)))
		_, derr := conn.Decode(p, object(t, []byte(`{}`)), object(t, []byte(`{}`)))
		if !errors.Is(errors.Join(perr, derr), forward.ErrPairParams) {
			t.Errorf("%s: %v, %v", name, perr, derr)
		}
	}
}

// BenchmarkLegs makes both bodies of a pair from a prompt of 100 KB.
func BenchmarkLegs(b *testing.B) {
	body := []byte(`{"model":"m","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"` + strings.Repeat("some words of a prompt, ", 4000) + `"}]}`)
	w := &fleet.Worker{ID: "w", Host: "h", Port: 1, DPRank: -1, Params: json.RawMessage(`{"bootstrap_addr":"h:8998"}`)}
	p := &forward.Pair{Prefill: w, Decode: w, PrefillRank: -1, DecodeRank: -1, Room: 1}
	conn := plugins.Connectors["sglang-bootstrap"]
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		o, err := forward.ParseObject(body)
		if err != nil {
			b.Fatal(err)
		}
		if _, err = conn.Prefill(p, o); err != nil {
			b.Fatal(err)
		}
		if _, err = conn.Decode(p, o, nil); err != nil {
			b.Fatal(err)
		}
	}
}
