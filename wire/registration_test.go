package wire

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pointsman/fleet"
)

type capturedRecord struct{ Name, Key, Value string }

func capturedRecords(tb testing.TB) []capturedRecord {
	tb.Helper()
	raw, err := os.ReadFile("testdata/registrations.json")
	if err != nil {
		tb.Fatal(err)
	}
	var file struct{ Records []capturedRecord }
	if err := json.Unmarshal(raw, &file); err != nil {
		tb.Fatal(err)
	}
	return file.Records
}

func TestCapturedRecordsDecodeAndEncodeToTheSameBytes(t *testing.T) {
	for _, c := range capturedRecords(t) {
		t.Run(c.Name, func(t *testing.T) {
			id, ok := WorkerID("", c.Key)
			if !ok {
				t.Fatalf("key %q is not a worker's", c.Key)
			}
			w, err := DecodeRegistration(id, []byte(c.Value))
			if err != nil {
				t.Fatal(err)
			}
			if w.ID != id || w.Address() != id || w.URL != "http://"+id {
				t.Errorf("worker %q at %q, %q", w.ID, w.Address(), w.URL)
			}
			got, err := EncodeRegistration(w)
			if err != nil {
				t.Fatal(err)
			}
			// The nested plane is the last field, and not kept but for its canary.
			want, _, _ := strings.Cut(c.Value, `"kv": `)
			have, _, _ := strings.Cut(string(got), `"kv": `)
			if have != want {
				t.Errorf("encoded\n%s\nwant\n%s", have, want)
			}
			again, err := DecodeRegistration("", got)
			if err != nil || !fleet.Same(again, w) {
				t.Errorf("decoded again: %+v, %v, want %+v", again, err, w)
			}
		})
	}
}

// The record of the contract's §1.2, written by Infera's own registration code.
func TestEveryFieldIsRead(t *testing.T) {
	const value = `{"worker_id": "10.0.0.5:30000", "url": "http://10.0.0.5:30000", "model_name": "Qwen/Qwen3-0.6B", "engine": "sglang", "disagg_mode": "prefill", "disagg_meta": {"protocol": "sglang-bootstrap", "params": {"bootstrap_addr": "10.0.0.5:8998"}}, "kv_events_endpoint": "tcp://10.0.0.5:20000", "kv_block_size": 16, "dp_rank": null, "dp_size": 4, "request_transport": "nats", "kv": {"engine_block_size": 16, "index_block_size": 64, "tokenizer": "Qwen/Qwen3-0.6B", "tokenizer_digest": "ab", "tokenizer_canary": [1, 2, 3], "supports_events": true, "event_version": 1, "events_endpoint": "tcp://10.0.0.5:5557", "snapshot_endpoint": "http://10.0.0.5:8801", "tiers": ["device"]}, "forwarder_endpoint": "10.0.0.5:8000", "ping_subject": "ping.w5", "kv_replay_endpoint": "tcp://10.0.0.5:21000", "status": "dead"}`
	want := &fleet.Worker{
		ID: "10.0.0.5:30000", URL: "http://10.0.0.5:30000", Host: "10.0.0.5", Port: 30000,
		Model: "Qwen/Qwen3-0.6B", Engine: fleet.SGLang, Status: fleet.Dead, Role: fleet.Prefill,
		Protocol: "sglang-bootstrap", Params: json.RawMessage(`{"bootstrap_addr": "10.0.0.5:8998"}`),
		KVEvents: "tcp://10.0.0.5:20000", KVReplay: "tcp://10.0.0.5:21000",
		BlockSize: 16, DPRank: -1, DPSize: 4, Transport: "nats", Endpoint: "10.0.0.5:8000", PingSubject: "ping.w5", Canary: []uint32{1, 2, 3},
	}
	got, err := DecodeRegistration("10.0.0.5:30000", []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.Ranks() != 4 {
		t.Errorf("%d ranks, want 4", got.Ranks())
	}
}

func TestWhatARecordMayLeaveOut(t *testing.T) {
	bare := func(edit func(*fleet.Worker)) *fleet.Worker {
		w := &fleet.Worker{
			ID: "w", URL: "http://h:1", Host: "h", Port: 1,
			Engine: fleet.SGLang, DPRank: -1, Transport: "http",
		}
		if edit != nil {
			edit(w)
		}
		return w
	}
	for _, c := range []struct {
		name, key, value string
		want             *fleet.Worker
	}{
		{"everything but ID and URL", "", `{"worker_id":"w","url":"http://h:1"}`, bare(nil)},
		{
			"null is the same as absent", "w",
			`{"worker_id":"w","url":"http://h:1","model_name":null,"engine":null,"status":null,"disagg_mode":null,"disagg_meta":null,
			"kv_events_endpoint":null,"kv_block_size":null,"dp_rank":null,"dp_size":null,"request_transport":null,"kv":null,"forwarder_endpoint":null}`,
			bare(nil),
		},
		{"unknown fields are passed over", "", `{"worker_id":"w","url":"http://h:1","rack":{"a":[1]},"Engine":7}`, bare(nil)},
		{"an unknown engine is kept", "", `{"worker_id":"w","url":"http://h:1","engine":"trt-llm"}`, bare(func(w *fleet.Worker) { w.Engine = "trt-llm" })},
		{"of a repeated field the last counts", "", `{"worker_id":"v","url":"http://h:1","worker_id":"w"}`, bare(nil)},
		{"an empty meta and an empty plane", "", `{"worker_id":"w","url":"http://h:1","disagg_meta":{},"kv":{}}`, bare(nil)},
		{"a meta of nulls", "", `{"worker_id":"w","url":"http://h:1","disagg_meta":{"protocol":null,"params":null}}`, bare(nil)},
		{"a whole number written as a float", "", `{"worker_id":"w","url":"http://h:1","kv_block_size":16.0}`, bare(func(w *fleet.Worker) { w.BlockSize = 16 })},
		{"a rank of its own", "", `{"worker_id":"w","url":"http://h:1","dp_rank":0,"dp_size":8}`, bare(func(w *fleet.Worker) { w.DPRank, w.DPSize = 0, 8 })},
		{"a draining worker", "", `{"worker_id":"w","url":"http://h:1","status":"draining"}`, bare(func(w *fleet.Worker) { w.Status = fleet.Draining })},
		{
			"IPv6", "", `{"worker_id":"[fd00::5]:30000","url":"http://[fd00::5]:30000/"}`,
			bare(func(w *fleet.Worker) {
				w.ID, w.URL, w.Host, w.Port = "[fd00::5]:30000", "http://[fd00::5]:30000", "fd00::5", 30000
			}),
		},
		{"the scheme's port", "", `{"worker_id":"w","url":"https://h"}`, bare(func(w *fleet.Worker) { w.URL, w.Port = "https://h", 443 })},
		{
			"a publisher that says only where it listens", "", `{"worker_id":"w","url":"http://h:1","kv_events_endpoint":"tcp://*:5557"}`,
			bare(func(w *fleet.Worker) { w.KVEvents = "tcp://h:5557" }),
		},
		{
			"an IPv6 publisher", "", `{"worker_id":"w","url":"http://[::1]:1","kv_events_endpoint":"tcp://[::]:5557"}`,
			bare(func(w *fleet.Worker) { w.URL, w.Host, w.KVEvents = "http://[::1]:1", "::1", "tcp://[::1]:5557" }),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DecodeRegistration(c.key, []byte(c.value))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestNonsenseNamesItsField(t *testing.T) {
	const ok = `"worker_id":"w","url":"http://h:1"`
	for _, c := range []struct{ name, value, field string }{
		{"empty", ``, "json"},
		{"null", `null`, "json"},
		{"an array", `[]`, "json"},
		{"cut off", `{` + ok, "json"},
		{"not UTF-8", "{" + ok + ",\"x\":\"\xff\"}", "json"},
		{"too large", `{` + ok + `,"x":"` + strings.Repeat("x", maxRecord) + `"}`, "json"},
		{"no ID", `{"url":"http://h:1"}`, "worker_id"},
		{"an empty ID", `{"worker_id":"","url":"http://h:1"}`, "worker_id"},
		{"a number as ID", `{"worker_id":1,"url":"http://h:1"}`, "worker_id"},
		{"an ID with a line break", `{"worker_id":"a\nb","url":"http://h:1"}`, "worker_id"},
		{"an endless ID", `{"worker_id":"` + strings.Repeat("i", 513) + `","url":"http://h:1"}`, "worker_id"},
		{"no URL", `{"worker_id":"w"}`, "url"},
		{"a URL without a scheme", `{"worker_id":"w","url":"h:1"}`, "url"},
		{"a URL of another scheme", `{"worker_id":"w","url":"ftp://h:1"}`, "url"},
		{"a URL without a host", `{"worker_id":"w","url":"http://:1"}`, "url"},
		{"a URL with port 0", `{"worker_id":"w","url":"http://h:0"}`, "url"},
		{"a URL with a port too high", `{"worker_id":"w","url":"http://h:70000"}`, "url"},
		{"a URL with a password", `{"worker_id":"w","url":"http://u:p@h:1"}`, "url"},
		{"a URL with a query", `{"worker_id":"w","url":"http://h:1?x"}`, "url"},
		{"a URL that is none", `{"worker_id":"w","url":"http://[::1:1"}`, "url"},
		{"a model that is a list", `{` + ok + `,"model_name":["m"]}`, "model_name"},
		{"an engine that is a number", `{` + ok + `,"engine":1}`, "engine"},
		{"a role not known", `{` + ok + `,"disagg_mode":"encode"}`, "disagg_mode"},
		{"a role in capitals", `{` + ok + `,"disagg_mode":"Prefill"}`, "disagg_mode"},
		{"a meta that is a string", `{` + ok + `,"disagg_meta":"x"}`, "disagg_meta"},
		{"a protocol that is a number", `{` + ok + `,"disagg_meta":{"protocol":1}}`, "disagg_meta"},
		{"parameters that are a list", `{` + ok + `,"disagg_meta":{"params":[1]}}`, "disagg_meta"},
		{"a transport not known", `{` + ok + `,"request_transport":"grpc"}`, "request_transport"},
		{"a publisher that is not tcp", `{` + ok + `,"kv_events_endpoint":"ipc:///x"}`, "kv_events_endpoint"},
		{"a publisher without a port", `{` + ok + `,"kv_events_endpoint":"tcp://h"}`, "kv_events_endpoint"},
		{"a publisher without a host", `{` + ok + `,"kv_events_endpoint":"tcp://:1"}`, "kv_events_endpoint"},
		{"more ranks than ports", `{` + ok + `,"dp_size":8,"kv_events_endpoint":"tcp://h:65530"}`, "kv_events_endpoint"},
		{"a block size below 0", `{` + ok + `,"kv_block_size":-1}`, "kv_block_size"},
		{"half a block", `{` + ok + `,"kv_block_size":16.5}`, "kv_block_size"},
		{"a block size in words", `{` + ok + `,"kv_block_size":"16"}`, "kv_block_size"},
		{"a block size beyond reason", `{` + ok + `,"kv_block_size":1e30}`, "kv_block_size"},
		{"a rank below 0", `{` + ok + `,"dp_rank":-1}`, "dp_rank"},
		{"a million ranks", `{` + ok + `,"dp_size":1000000}`, "dp_size"},
		{"a plane that is a list", `{` + ok + `,"kv":[]}`, "kv"},
		{"a canary of strings", `{` + ok + `,"kv":{"tokenizer_canary":["a"]}}`, "kv"},
		{"a canary below 0", `{` + ok + `,"kv":{"tokenizer_canary":[-1]}}`, "kv"},
		{"a ping to everybody", `{` + ok + `,"ping_subject":"ping.*"}`, "ping_subject"},
		{"a ping to nobody", `{` + ok + `,"ping_subject":"ping."}`, "ping_subject"},
		{"a ping with a second word", `{` + ok + `,"ping_subject":"ping x"}`, "ping_subject"},
		{"a forwarder without a port", `{` + ok + `,"forwarder_endpoint":"h"}`, "forwarder_endpoint"},
		{"a replay address without a port", `{` + ok + `,"kv_replay_endpoint":"tcp://h"}`, "kv_replay_endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := DecodeRegistration("", []byte(c.value))
			if w != nil || !errors.Is(err, ErrRecord) {
				t.Fatalf("got %+v, %v, want an error in the chain of ErrRecord", w, err)
			}
			if got := Reason(err); got != c.field {
				t.Errorf("blames %q, want %q (%v)", got, c.field, err)
			}
			if len(err.Error()) > 700 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestAnUnknownStatusTakesTheWorkerOutAndSaysSo(t *testing.T) {
	for _, value := range []string{`"bogus"`, `"ACTIVE"`, `7`} {
		w, err := DecodeRegistration("", []byte(`{"worker_id":"w","url":"http://h:1","status":`+value+`}`))
		if w == nil || w.Status != fleet.Draining {
			t.Errorf("status %s: worker %+v, want one that drains", value, w)
		}
		if Reason(err) != "status" {
			t.Errorf("status %s: error %v, want one that names the status", value, err)
		}
	}
}

func TestReasonOfAnotherErrorIsOther(t *testing.T) {
	if got := Reason(errors.New("x")); got != "other" {
		t.Errorf("got %q", got)
	}
}

func TestEncodeEscapesAsPythonDoes(t *testing.T) {
	w := &fleet.Worker{ID: "w\"\\\t\n", URL: "http://h:1", Model: "modèle 😀\u007f", Engine: "vllm", DPRank: -1, Transport: "http"}
	got, err := EncodeRegistration(w)
	if err != nil {
		t.Fatal(err)
	}
	// json.dumps({...}) of the same values in CPython 3.11.
	const want = `{"worker_id": "w\"\\\t\n", "url": "http://h:1", "model_name": "mod\u00e8le \ud83d\ude00\u007f", "engine": "vllm", "disagg_mode": "mixed", "disagg_meta": {}, "kv_events_endpoint": null, "kv_block_size": null, "dp_rank": null, "dp_size": null, "request_transport": "http"}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEncodeRefusesWhatNobodyCouldRead(t *testing.T) {
	for name, w := range map[string]*fleet.Worker{
		"no ID":                  {URL: "http://h:1"},
		"no URL":                 {ID: "w"},
		"parameters cut off":     {ID: "w", URL: "http://h:1", Params: json.RawMessage(`{"a":`)},
		"parameters of a string": {ID: "w", URL: "http://h:1", Params: json.RawMessage(`"a"`)},
	} {
		if got, err := EncodeRegistration(w); !errors.Is(err, ErrRecord) {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
}

func TestFurtherNamesAreReadAndWritten(t *testing.T) {
	w, err := DecodeRegistration("", []byte(`{"worker_id":"w","url":"http://h:1","model_name":"m","model_aliases":["chat"],"lora_adapters":["sql","law"]}`))
	if err != nil || !slices.Equal(w.Aliases, []string{"chat"}) || !slices.Equal(w.Adapters, []string{"sql", "law"}) {
		t.Fatalf("%+v, %v", w, err)
	}
	raw, err := EncodeRegistration(w)
	if again, _ := DecodeRegistration("", raw); err != nil || again == nil || !fleet.Same(again, w) {
		t.Errorf("written as %s, %v", raw, err)
	}
	for _, bad := range []string{`"chat"`, `[1]`, `[""]`} {
		if _, err := DecodeRegistration("", []byte(`{"worker_id":"w","url":"http://h:1","lora_adapters":`+bad+`}`)); Reason(err) != "lora_adapters" {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// D10, security S4.
func TestARecordUnderAnothersKeyIsRefused(t *testing.T) {
	w, err := DecodeRegistration("k", []byte(`{"worker_id":"w","url":"http://h:1"}`))
	if w != nil || !errors.Is(err, ErrClaim) || !errors.Is(err, ErrRecord) || Reason(err) != "worker_id" {
		t.Errorf("%+v, %v", w, err)
	}
}

func FuzzDecodeRegistration(f *testing.F) {
	for _, c := range capturedRecords(f) {
		f.Add("", []byte(c.Value))
	}
	f.Add("k", []byte(`{"worker_id":"w","url":"http://[::1]:1/p","status":"bogus","kv":{"tokenizer_canary":[1]}}`))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		w, err := DecodeRegistration(key, value)
		if err != nil && !errors.Is(err, ErrRecord) {
			t.Fatalf("untyped error %v", err)
		}
		if w == nil {
			if err == nil {
				t.Fatal("neither a worker nor an error")
			}
			return
		}
		if w.ID == "" || w.Host == "" || w.Port < 1 || w.Port > 65535 || w.Ranks() > maxRanks {
			t.Fatalf("accepted %+v", w)
		}
		raw, err := EncodeRegistration(w)
		if err != nil {
			t.Fatalf("does not encode: %v", err)
		}
		again, err := DecodeRegistration("", raw)
		if err != nil || !fleet.Same(again, w) {
			t.Fatalf("%s\ndecoded again: %+v, %v\nwant %+v", raw, again, err, w)
		}
	})
}
