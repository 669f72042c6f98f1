package simengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pointsman/fleet"
	"pointsman/internal/testkit"
	"pointsman/wire"
)

// half is one engine of a pair.
func half(t *testing.T, role fleet.Role, protocol string, edit func(*Config)) *Engine {
	t.Helper()
	cfg := fast()
	cfg.Role, cfg.PD.Protocol, cfg.PD.Partner = role, protocol, 300*time.Millisecond
	if protocol == sglangBootstrap {
		cfg.Engine = fleet.SGLang
	}
	if edit != nil {
		edit(&cfg)
	}
	return start(t, cfg)
}

// ask sends a chat completion with extra fields.
func ask(t *testing.T, e *Engine, fields string, headers ...string) (got, string) {
	t.Helper()
	return do(t, http.MethodPost, e.URL()+"/v1/chat/completions",
		`{"model":"sim-model","messages":[{"role":"user","content":"tell me about the pair, at some length, so that there are blocks"}]`+fields+`}`, headers...)
}

const mooncakeProduce = `,"max_tokens":1,"stream":false,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"xfer-00000000000000001234567812345678"}`

func TestAPrefillEngineRefusesALegWhoseFieldsAreWrong(t *testing.T) {
	e := half(t, fleet.Prefill, vllmMooncake, nil)
	change := func(old, now string) string { return strings.Replace(mooncakeProduce, old, now, 1) }
	for name, fields := range map[string]string{
		"no fields":                 `,"max_tokens":1,"stream":false`,
		"more than one token":       change(`"max_tokens":1`, `"max_tokens":8`),
		"a stream":                  change(`"stream":false`, `"stream":true`),
		"no stream field":           change(`"stream":false,`, ``),
		"stream options":            mooncakeProduce + `,"stream_options":{}`,
		"another token limit":       mooncakeProduce + `,"max_completion_tokens":4`,
		"the decode leg's fields":   change(`"do_remote_decode":true`, `"do_remote_decode":false`),
		"a transfer ID of its own":  change(`xfer-0000000000000000`, `xfer-`),
		"a transfer ID over 2^63":   change(`xfer-00000000000000001`, `xfer-0000000000000000f`),
		"a field that isn't there":  change(`"transfer_id"`, `"x":1,"transfer_id"`),
		"a field that is no object": `,"max_tokens":1,"stream":false,"kv_transfer_params":7`,
	} {
		if resp, body := ask(t, e, fields); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	for i := range e.Receipts() {
		if r := receipt(t, e, i); r.Outcome != OutcomeRejected || r.Error == "" {
			t.Errorf("receipt %+v", r)
		}
	}
}

func TestTransfersFromOnePrefillEngineCanBeCut(t *testing.T) {
	s := &side{}
	s.cutOff("10.0.0.1", true)
	s.cutOff("10.0.0.2", false)
	for addr, want := range map[string]bool{"10.0.0.1:8998": true, "10.0.0.2:8998": false, "10.0.0.3:8998": false, "10.0.0.1": false} {
		if got := s.cut(addr); got != want {
			t.Errorf("from %s cut: %v", addr, got)
		}
	}
	if s.cutOff("10.0.0.1", false); s.cut("10.0.0.1:8998") {
		t.Error("it is not put back")
	}
}

func TestALegWithoutPartnerIsRefusedInTime(t *testing.T) {
	p := half(t, fleet.Prefill, vllmMooncake, nil)
	began := time.Now()
	if resp, body := ask(t, p, mooncakeProduce); resp.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "no decode leg came") {
		t.Errorf("prefill: %d %s", resp.StatusCode, body)
	}
	d := half(t, fleet.Decode, vllmMooncake, nil)
	fields := fmt.Sprintf(`,"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"xfer-00000000000000001234567812345679","remote_bootstrap_addr":"http://127.0.0.1:%d","remote_engine_id":"e"}`, p.SidePort())
	if resp, body := ask(t, d, fields); resp.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "no prefill leg came") {
		t.Errorf("decode: %d %s", resp.StatusCode, body)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if resp, body := ask(t, p, mooncakeProduce); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "used before") {
		t.Errorf("a second leg in the room: %d %s", resp.StatusCode, body)
	}
	if resp, _ := ask(t, d, ""); resp.StatusCode != http.StatusOK {
		t.Errorf("a decode engine of vLLM can compute a prompt itself: %d", resp.StatusCode)
	}
	if resp, body := ask(t, half(t, fleet.Decode, sglangBootstrap, nil), ""); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("one of SGLang cannot: %d %s", resp.StatusCode, body)
	}
}

func TestTheDecodeEngineGetsTheKVCache(t *testing.T) {
	p, d := half(t, fleet.Prefill, vllmMooncake, nil), half(t, fleet.Decode, vllmMooncake, nil)
	decode := func(id string) string {
		return fmt.Sprintf(`,"max_tokens":4,"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"%s","remote_bootstrap_addr":"http://127.0.0.1:%d","remote_engine_id":"%s"}`,
			id, p.SidePort(), p.side.engineID)
	}
	const id = "xfer-00000000000000001234567812345678"
	ended := make(chan int, 1)
	go func() {
		resp, _ := ask(t, p, mooncakeProduce)
		ended <- resp.StatusCode
	}()
	resp, body := ask(t, d, decode(id))
	if resp.StatusCode != http.StatusOK || <-ended != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	var answer openAIAnswer
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatal(err)
	}
	if u := answer.Usage; u.Details.CachedTokens != u.PromptTokens-1 {
		t.Errorf("usage %+v", u)
	}
	pr, dr := receipt(t, p, 0), receipt(t, d, 0)
	if pr.Room != id || dr.Room != id || pr.Partner != d.ID() || dr.Partner != p.ID() || pr.Leg != "prefill" || dr.Leg != "decode" {
		t.Errorf("receipts\n%+v\n%+v", pr, dr)
	}
	if dr.CachedTokens != dr.PromptTokens-1 || pr.TokensSent != 1 {
		t.Errorf("decode found %d of %d tokens; prefill sent %d", dr.CachedTokens, dr.PromptTokens, pr.TokensSent)
	}
}

// A decode engine that is told the wrong rank finds nothing there.
func TestTheRankOfAPrefillLegIsChecked(t *testing.T) {
	ranks := func(c *Config) { c.PD.Ranks = 4 }
	p, d := half(t, fleet.Prefill, vllmMooncake, ranks), half(t, fleet.Decode, vllmMooncake, nil)
	var legs sync.WaitGroup
	defer legs.Wait()
	for rank, want := range map[string]int{"2": 200, "3": 400} {
		id := "xfer-0000000000000000123456781234567" + rank
		legs.Go(func() {
			ask(t, p, strings.Replace(mooncakeProduce, "xfer-00000000000000001234567812345678", id, 1), "X-Data-Parallel-Rank", "2")
		})
		fields := fmt.Sprintf(`,"kv_transfer_params":{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"%s","remote_bootstrap_addr":"http://127.0.0.1:%d","remote_engine_id":"%s_dp%s"}`,
			id, p.SidePort(), p.side.engineID, rank)
		if resp, body := ask(t, d, fields); resp.StatusCode != want {
			t.Errorf("rank %s: %d %s", rank, resp.StatusCode, body)
		}
	}
	if resp, body := ask(t, p, mooncakeProduce, "X-Data-Parallel-Rank", "4"); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	s := half(t, fleet.Prefill, sglangBootstrap, ranks)
	fields := fmt.Sprintf(`,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":6`, s.SidePort())
	if resp, body := ask(t, s, fields, "X-Data-Parallel-Rank", "1"); resp.StatusCode != http.StatusBadRequest || !strings.Contains(body, "on rank 2") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	testkit.Until(t, "the end of the leg on the wrong rank", func() bool { return strings.Contains(lastError(p), "no decode leg") })
}

func lastError(e *Engine) (text string) {
	for _, r := range e.Receipts() {
		text += r.Error
	}
	return text
}

func TestTheRegistrationHasWhatThePartnerNeeds(t *testing.T) {
	for _, protocol := range Protocols() {
		e := half(t, fleet.Prefill, protocol, func(c *Config) { c.PD.Ranks = 2 })
		raw, err := wire.EncodeRegistration(e.Worker())
		if err != nil {
			t.Fatal(err)
		}
		w, err := wire.DecodeRegistration("", raw)
		if err != nil || w.Protocol != protocol || w.Role != fleet.Prefill || w.DPSize != 2 || !strings.Contains(string(raw), itoa(e.SidePort())) && protocol != vllmNixl {
			t.Errorf("%s: %s, %v", protocol, raw, err)
		}
	}
}

func TestPDConfigFaults(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"pd protocol":    func(c *Config) { c.PD.Protocol = "smoke" },
		"give the role":  func(c *Config) { c.PD.Protocol = vllmNixl },
		"pd partner":     func(c *Config) { c.PD.Protocol, c.Role, c.PD.Partner = vllmNixl, fleet.Decode, 0 },
		"pd port":        func(c *Config) { c.PD.Port = 70000 },
		"ranks: give":    func(c *Config) { c.PD.Ranks = 2 },
		"-1 ranks: give": func(c *Config) { c.PD.Ranks = -1 },
	} {
		cfg := DefaultConfig()
		edit(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
