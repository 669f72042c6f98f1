package static

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"pointsman/fleet"
)

func TestAWholeFleet(t *testing.T) {
	got, err := Parse([]byte(`
# the lab
workers:
  - url: http://10.0.0.1:30000
    model: m
    engine: vllm
    block_size: 16
    kv_events: tcp://10.0.0.1:20000
    kv_replay: 10.0.0.1:21000
    endpoint: 10.0.0.1:8000
    dp_size: 2
  - url: gpu-7.lab:30000
    id: seven
    role: prefill
    status: draining
    transport: nats
    dp_size: 8
    dp_rank: 3
    protocol: sglang-bootstrap
    params: {bootstrap_addr: "gpu-7.lab:8998"}
  - url: "[fd00::1]:30000"
    kv_events: "*:20000"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []*fleet.Worker{
		{
			ID: "10.0.0.1:30000", URL: "http://10.0.0.1:30000", Host: "10.0.0.1", Port: 30000, Model: "m", Engine: fleet.VLLM,
			KVEvents: "tcp://10.0.0.1:20000", KVReplay: "tcp://10.0.0.1:21000", BlockSize: 16, DPRank: -1, DPSize: 2,
			Transport: "http", Endpoint: "10.0.0.1:8000",
		},
		{
			ID: "seven", URL: "http://gpu-7.lab:30000", Host: "gpu-7.lab", Port: 30000, Engine: fleet.SGLang,
			Role: fleet.Prefill, Status: fleet.Draining, Protocol: "sglang-bootstrap",
			Params: []byte(`{"bootstrap_addr":"gpu-7.lab:8998"}`), DPRank: 3, DPSize: 8, Transport: "nats",
		},
		{
			ID: "[fd00::1]:30000", URL: "http://[fd00::1]:30000", Host: "fd00::1", Port: 30000, Engine: fleet.SGLang,
			KVEvents: "tcp://[fd00::1]:20000", DPRank: -1, Transport: "http",
		},
	}
	for i := range want {
		if i >= len(got) || !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("worker %d:\ngot  %+v\nwant %+v", i, got[i], want[i])
		}
	}
}

// The example in the package comment is what people copy.
func TestTheDocumentedFile(t *testing.T) {
	source, err := os.ReadFile("static.go")
	if err != nil {
		t.Fatal(err)
	}
	var example strings.Builder
	for line := range strings.Lines(string(source)) {
		if code, ok := strings.CutPrefix(line, "//\t"); ok {
			example.WriteString(code)
		}
	}
	got, err := Parse([]byte(example.String()))
	if err != nil || len(got) != 1 {
		t.Fatalf("got %v, %v of\n%s", got, err, example.String())
	}
	if w := got[0]; w.ID != "gpu-1" || w.Role != fleet.Prefill || w.KVReplay != "tcp://10.0.0.1:5558" || w.DPSize != 2 {
		t.Errorf("got %+v", w)
	}
	for _, key := range entryKeys() {
		if key != "dp_rank" && !strings.Contains(example.String(), key+":") {
			t.Errorf("the example lacks %s", key)
		}
	}
}

func TestAFleetOfNone(t *testing.T) {
	got, err := Parse([]byte("workers: []"))
	if err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestFaultsAreNamedWithTheirLine(t *testing.T) {
	const w = "workers:\n- url: h:1\n  "
	for _, c := range []struct{ name, content, want string }{
		{"empty", "", "workers: []"},
		{"only a comment", "# nothing\n", "workers: []"},
		{"an empty mapping", "{}", "workers: []"},
		{"null", "null", "line 1: want a mapping"},
		{"a list", "- url: h:1", "line 1: want a mapping"},
		{"not YAML", "workers: [", "yaml"},
		{"two documents", "workers: []\n---\nworkers: []", "more than one document"},
		{"a misspelt root", "worker: []", `line 1: unknown key "worker": did you mean "workers"?`},
		{"workers that are a word", "workers: x", "line 1: workers is no list"},
		{"a worker that is a word", "workers:\n- x", "line 2: want a mapping"},
		{"a misspelt key", w + "blocksize: 16", `line 3: unknown key "blocksize": did you mean "block_size"?`},
		{"another", w + "enigne: vllm", `did you mean "engine"?`},
		{"a key of the record", w + "kv_events_endpoint: x", `did you mean "kv_events"?`},
		{"no URL", "workers:\n- model: m", "line 2: url: missing"},
		{"a URL with a password", "workers:\n- url: http://u:p@h:1", "line 2: url: "},
		{"a port beyond reason", "workers:\n- url: h:99999", "line 2: url: "},
		{"a size in words", w + "block_size: large", "line 2: yaml"},
		{"a size below 0", w + "block_size: -4", "line 2: block_size: "},
		{"a role not known", w + "role: both", "line 2: role: "},
		{"a status not known", w + "status: asleep", "line 2: status: "},
		{"a publisher without a port", w + "kv_events: h", "line 2: kv_events: "},
		{"a forwarder without a port", w + "endpoint: h", "line 2: endpoint: "},
		{"a transport not known", w + "transport: smtp", "line 2: transport: "},
		{"an ID with a space", w + "id: 'a b'", "line 2: id: "},
		{"parameters that JSON cannot say", w + "params: {a: .nan}", "line 2: params: "},
		{"the same worker twice", "workers:\n- url: h:1\n- url: http://h:1/", `line 3: worker "h:1" is also on line 2`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse([]byte(c.content))
			if err == nil || got != nil {
				t.Fatalf("got %v, %v, want an error", got, err)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want it to say %q", err, c.want)
			}
		})
	}
}

func TestAllFaultsAreNamedAtOnce(t *testing.T) {
	_, err := Parse([]byte("workers:\n- url: h:1\n  role: x\n- model: m\n- url: h:2\n  idd: 1\n  modell: 2\n"))
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"line 2: role", "line 4: url: missing", `line 6: unknown key "idd"`, `line 7: unknown key "modell"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("workers:\n- url: h:1\n  params: {a: [1]}\n")
	f.Add("workers: [{url: 'http://[::1]:8000', kv_events: '*:1', role: decode}]")
	f.Add("a: &a [*a]\nworkers: *a")
	f.Fuzz(func(t *testing.T, content string) {
		got, err := Parse([]byte(content))
		if err != nil && got != nil {
			t.Fatalf("both workers and %v", err)
		}
		for _, w := range got {
			if w.ID == "" || w.Host == "" || w.Port == 0 {
				t.Fatalf("accepted %+v", w)
			}
		}
	})
}
