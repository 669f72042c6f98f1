package forward_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pointsman/fleet"
	"pointsman/forward"
	"pointsman/internal/testkit"
)

// injecting lets fields through that another router has put into captured bodies.
func injecting(c *forward.Config, _ *forward.Deps) { c.InjectRetention, c.StripTransfer = true, false }

// sentBy sends body to a worker of the engine and returns what the worker got.
func sentBy(t *testing.T, engine fleet.Engine, c call, options ...option) string {
	t.Helper()
	w := newWorld(t, []script{good}, options...)
	only := w.fleet()[0]
	only.Engine = engine
	w.feed.Replace([]*fleet.Worker{only})
	if got := w.do(c); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	receipts := w.engines[0].got()
	if len(receipts) != 1 {
		t.Fatalf("%d receipts, want 1", len(receipts))
	}
	return string(receipts[0].body)
}

// TestRetentionAsCaptured compares with bodies that workers of a real Infera
// fleet received, and with those less what Infera had put in
// (testdata/retention.jsonl; every line names the capture).
func TestRetentionAsCaptured(t *testing.T) {
	file, err := os.Open("testdata/retention.jsonl")
	fatal(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	n := 0
	for ; lines.Scan(); n++ {
		var row struct {
			Engine     fleet.Engine
			Path, From string
			Sent, Got  json.RawMessage
		}
		fatal(t, json.Unmarshal(lines.Bytes(), &row))
		t.Run(row.From+row.Path, func(t *testing.T) {
			sent := strings.ReplaceAll(strings.ReplaceAll(string(row.Sent), "mock-model", model), "toy-model", model)
			want := strings.ReplaceAll(strings.ReplaceAll(string(row.Got), "mock-model", model), "toy-model", model)
			got := sentBy(t, row.Engine, call{path: row.Path, body: sent}, injecting)
			var a, b bytes.Buffer
			fatal(t, json.Compact(&a, []byte(got)))
			fatal(t, json.Compact(&b, []byte(want)))
			if a.String() != b.String() {
				t.Errorf("the worker got\n%s\nwant\n%s", a.String(), b.String())
			}
		})
	}
	if fatal(t, lines.Err()); n < 8 {
		t.Errorf("%d captured bodies, want them all", n)
	}
}

func TestRetentionByHintAndEngine(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"hello"}]`
	short := func(c *forward.Config, _ *forward.Deps) { c.DefaultRetention = "short" }
	none := func(c *forward.Config, _ *forward.Deps) { c.DefaultRetention = "none" }
	for name, tt := range map[string]struct {
		engine     fleet.Engine
		more, want string // after the model and messages
		options    []option
	}{
		"no hint is long":                  {fleet.SGLang, ``, `,"priority":100,"infera_retention":"long"`, nil},
		"no hint is the default":           {fleet.SGLang, ``, `,"priority":50,"infera_retention":"short"`, []option{short}},
		"a default of none":                {fleet.SGLang, ``, `,"priority":0,"infera_retention":"none"`, []option{none}},
		"a hint beats the default":         {fleet.SGLang, `,"prompt_cache_retention":"24h"`, `,"prompt_cache_retention":"24h","priority":100,"infera_retention":"long"`, []option{none}},
		"asked not to be kept":             {fleet.SGLang, `,"prompt_cache_retention":"off"`, `,"prompt_cache_retention":"off","priority":0,"infera_retention":"none"`, nil},
		"a key alone is short":             {fleet.VLLM, `,"prompt_cache_key":"k"`, `,"prompt_cache_key":"k","kv_transfer_params":{"infera_retention":"short"},"_infera_retention":"short"`, nil},
		"the client's priority wins":       {fleet.SGLang, `,"priority":7`, `,"priority":7,"infera_retention":"long"`, nil},
		"a null priority is none":          {fleet.SGLang, `,"priority":null`, `,"priority":100,"infera_retention":"long"`, nil},
		"the client's transfer parameters": {fleet.VLLM, `,"kv_transfer_params":{ "a":[1, 2] },"x":1.50`, `,"kv_transfer_params":{"a":[1, 2],"infera_retention":"long"},"x":1.50,"_infera_retention":"long"`, nil},
		"transfer parameters of null":      {fleet.VLLM, `,"kv_transfer_params":null`, `,"kv_transfer_params":{"infera_retention":"long"},"_infera_retention":"long"`, nil},
		"no object is the engine's affair": {fleet.VLLM, `,"kv_transfer_params":"x"`, `,"kv_transfer_params":"x","_infera_retention":"long"`, nil},
		"a client's forgery":               {fleet.VLLM, `,"_infera_retention":"none"`, `,"kv_transfer_params":{"infera_retention":"long"},"_infera_retention":"long"`, nil},
		"nothing for atom":                 {fleet.ATOM, `,"prompt_cache_key":"k"`, `,"prompt_cache_key":"k"`, nil},
		"nothing for other engines":        {"own", ``, ``, nil},
	} {
		t.Run(name, func(t *testing.T) {
			head := `{"model":"m",` + messages
			got := sentBy(t, tt.engine, call{body: head + tt.more + "}"}, append([]option{injecting}, tt.options...)...)
			if want := head + tt.want + "}"; got != want {
				t.Errorf("the worker got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestH5NothingIsInjectedUnasked: the default adds nothing to any body, and asked
// for, only the two paths that Infera has get the fields.
func TestH5NothingIsInjectedUnasked(t *testing.T) {
	for _, engine := range []fleet.Engine{fleet.SGLang, fleet.VLLM} {
		if got := sentBy(t, engine, call{body: chatBody}); got != chatBody {
			t.Errorf("%s got %s", engine, got)
		}
		for _, path := range []string{"/v1/messages", "/v1/responses", "/v1/embeddings"} {
			if got := sentBy(t, engine, call{path: path, body: chatBody}, injecting); got != chatBody {
				t.Errorf("%s got on %s %s", engine, path, got)
			}
		}
	}
}

func TestRetentionOnBothLegs(t *testing.T) {
	for protocol, want := range map[string]string{
		"sglang-bootstrap": `"priority":100,"infera_retention":"long"}`,
		"vllm-mooncake":    `"infera_retention":"long"},"_infera_retention":"long"}`,
		"vllm-mori-read":   `"infera_retention":"long"},"_infera_retention":"long"}`,
	} {
		t.Run(protocol, func(t *testing.T) {
			first := good
			if protocol == "vllm-mori-read" {
				first = handoff(`{"transfer_id":"t","remote_engine_id":"e","remote_block_ids":[1]}`)
			}
			w := newPairWorld(t, protocol, []script{first}, []script{good}, injecting, change(func(c *forward.Config) { c.EngineRequestID = false }))
			if got := w.do(call{body: streamBody}); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			w.settled(1)
			for _, e := range append(w.prefill, w.decode...) {
				// A prefill leg may be sent after its decode leg is done.
				testkit.Until(t, "a leg has come", func() bool { return len(e.got()) > 0 })
				for _, r := range e.got() {
					if !bytes.HasSuffix(r.body, []byte(want)) {
						t.Errorf("a leg got %s", r.body)
					}
				}
				if len(e.got()) != 1 {
					t.Errorf("%d legs", len(e.got()))
				}
			}
		})
	}
}

// TestRetentionOfARetryIsTheNextWorkers: the fields are the engine's that gets
// the attempt, not those of the one before.
func TestRetentionOfARetryIsTheNextWorkers(t *testing.T) {
	w := newWorld(t, []script{raw(jsonReply(500, `{}`)), good}, injecting)
	all := w.fleet()
	all[0].Engine = fleet.SGLang
	w.feed.Replace(all)
	for range 6 { // until the failing one was first
		if got := w.do(call{body: chatBody}); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
	}
	if len(w.engines[0].got()) == 0 {
		t.Fatal("the failing worker was never asked")
	}
	for i, unwanted := range []string{"kv_transfer_params", "priority"} {
		for _, r := range w.engines[i].got() {
			if bytes.Contains(r.body, []byte(unwanted)) || !bytes.Contains(r.body, []byte(`infera_retention":"long"`)) {
				t.Errorf("worker %d got %s", i+1, r.body)
			}
		}
	}
}

func TestDefaultRetentionIsValidated(t *testing.T) {
	c := forward.DefaultConfig()
	c.DefaultRetention = "ever"
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "none, short or long") {
		t.Errorf("error = %v", err)
	}
}
