package forward_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pointsman/forward"
	"pointsman/trust"
)

func TestClientsCannotTellEnginesWhereToFetchFrom(t *testing.T) {
	const hostile = `{"model":"m", "kv_transfer_params" : {"remote_host":"evil","remote_port":1,"do_remote_prefill":true},` +
		`"messages":[{"role":"user","content":"hi kv_transfer_params"}],"bootstrap_host":"evil","bootstrap_port":[1],"bootstrap_room":7,` +
		`"do_remote_decode":true,"remote_block_ids":[1],"data_parallel_rank":3,"kv\u005ftransfer_params":{"remote_host":"evil"},"n":1}`
	const harmless = `{"model":"m","messages":[{"role":"user","content":"hi kv_transfer_params"}],"n":1}`
	for _, tc := range []struct {
		name, path, body, want string
		keep                   bool
	}{
		{"chat", "/v1/chat/completions", hostile, harmless, false},
		{"chat that has none keeps its bytes", "/v1/chat/completions", ` {"model" : "m","messages":[{"role":"user","content":"hi"}] } `, ` {"model" : "m","messages":[{"role":"user","content":"hi"}] } `, false},
		{"completions", "/v1/completions", `{"model":"m","prompt":"x","kv_transfer_params":null}`, `{"model":"m","prompt":"x"}`, false},
		{"another path", "/generate", `{"text":"x","bootstrap_host":"evil","bootstrap_room":1}`, `{"text":"x"}`, false},
		{"another path that no scan reads", "/generate", `{"text":NaN,"bootstrap_host":"evil"}`, `{"text":NaN}`, false},
		{"behind another router", "/v1/completions", `{"model":"m","prompt":"x","bootstrap_room":7}`, `{"model":"m","prompt":"x","bootstrap_room":7}`, true},
	} {
		w := newWorld(t, []script{good}, change(func(c *forward.Config) { c.StripTransfer = !tc.keep }))
		if got := w.do(call{path: tc.path, body: tc.body}); got.status != 200 {
			t.Fatalf("%s: status %d %s", tc.name, got.status, got.body)
		}
		if got := string(w.engines[0].got()[0].body); got != tc.want {
			t.Errorf("%s: the engine got\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		want := 1
		if tc.body == tc.want {
			want = 0
		}
		if n := w.count("pointsman_forward_stripped_bodies_total"); n != want {
			t.Errorf("%s: counted %d", tc.name, n)
		}
		w.settled(1)
	}
}

func TestARedirectIsNeitherFollowedNorPassedOn(t *testing.T) {
	for _, status := range []string{"301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"} {
		w := newWorld(t, []script{raw("HTTP/1.1 " + status + "\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n")})
		got := w.do(call{body: chatBody})
		if got.status != 502 || errorOf(t, got).Code != "upstream_invalid_response" || got.header.Get("Location") != "" {
			t.Errorf("%s: status %d, %v", status, got.status, got.header)
		}
		w.settled(1)
	}
}

func salted(mode trust.SaltMode) option {
	return func(c *forward.Config, d *forward.Deps) {
		c.Admission.Tenant = "x-tenant"
		d.Salts = &trust.Salts{Mode: mode, Keys: ticketKeys}
	}
}

func TestEnginesGetTheTenantsSalt(t *testing.T) {
	derive := func(tenant, client string) string { return ticketKeys.Salt(time.Now(), tenant, client) }
	for _, tc := range []struct {
		name, tenant, client, path string
		mode                       trust.SaltMode
		want                       string // "" for none
		status                     int
	}{
		{"the client's own passes", "a", "s", "", trust.SaltPass, "s", 200},
		{"none passes", "a", "", "", trust.SaltPass, "", 200},
		{"a tenant's is derived", "a", "", "", trust.SaltTenant, derive("a", ""), 200},
		{"the client's is a part of it", "a", "s", "", trust.SaltTenant, derive("a", "s"), 200},
		{"another tenant's is none", "b", derive("a", ""), "", trust.SaltTenant, derive("b", derive("a", "")), 200},
		{"nobody is a tenant, too", "", "", "", trust.SaltTenant, derive("", ""), 200},
		{"responses are salted", "a", "", "/v1/responses", trust.SaltTenant, derive("a", ""), 200},
		{"one is required, and there", "a", "s", "", trust.SaltRequire, "s", 200},
		{"one is required", "a", "", "", trust.SaltRequire, "", 400},
	} {
		w := newWorld(t, []script{good}, salted(tc.mode))
		path, body := "/v1/chat/completions", strings.Replace(chatBody, "{", `{"cache_salt":"`+tc.client+`",`, 1)
		if tc.client == "" {
			body = chatBody
		}
		if tc.path != "" {
			path, body = tc.path, `{"model":"m","input":"hello"}`
		}
		got := w.do(call{path: path, body: body, header: map[string]string{"X-Tenant": tc.tenant}})
		if got.status != tc.status {
			t.Errorf("%s: status %d %s", tc.name, got.status, got.body)
		}
		if tc.status != 200 {
			if e := errorOf(t, got); e.Code != "cache_salt_required" || e.Param == nil || *e.Param != "cache_salt" {
				t.Errorf("%s: %+v", tc.name, e)
			}
			if n := w.receipts(); n[0] != 0 {
				t.Errorf("%s: %d deliveries", tc.name, n[0])
			}
			continue
		}
		var sent struct {
			Salt string `json:"cache_salt"`
		}
		raw := w.engines[0].got()[0].body
		if err := json.Unmarshal(raw, &sent); err != nil || sent.Salt != tc.want || bytes.Count(raw, []byte("cache_salt")) > 1 {
			t.Errorf("%s: the engine got %s, want the salt %q", tc.name, raw, tc.want)
		}
		w.settled(1)
	}
}
