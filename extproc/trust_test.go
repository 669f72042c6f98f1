package extproc

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"pointsman/internal/testkit"
	"pointsman/picker"
	"pointsman/trust"
)

// security S19: who opens streams and says nothing runs into a bound, and those that
// hold a place are served on.
func TestStreamsThatSayNothingAreBounded(t *testing.T) {
	cfg := testConfig()
	cfg.MaxInFlight = 20
	w := newWorld(t, cfg, mixed(workerID, "m"))
	served := w.routedChat(fullDuplex)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := make(chan error, 100)
	for range 100 {
		stream, err := w.client.Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := stream.Recv()
			refused <- err
		}()
	}
	const room = 20 + 8 // of which the served one has a place
	for range 100 - room + 1 {
		if err := <-refused; status.Code(err) != codes.ResourceExhausted {
			t.Fatalf("a stream too many ended with %v", err)
		}
	}
	if open, n := w.server.metrics.open.Load(), testutil.ToFloat64(w.server.metrics.crowded); open != room || n != 100-room+1 {
		t.Errorf("%d streams are open, %v were refused", open, n)
	}
	served.send(responseHeaders(true, ":status", "200"))
	served.unchanged(kindResponseHeaders)
	served.finish()
	cancel()
	testkit.Until(t, "everybody gone", func() bool { return w.server.metrics.open.Load() == 0 })
	w.routedChat(fullDuplex).cancel()
}

func TestStreamsAreBoundedByDefault(t *testing.T) {
	if n := DefaultConfig().MaxInFlight; n < 10000 || n > 100000 {
		t.Errorf("%d streams may be open by default", n)
	}
}

// security S16: the EPP looks for blocks under the salt that the forwarder puts in.
func TestPromptsAreLookedForUnderTheTenantsSalt(t *testing.T) {
	keys := trust.StaticKeys([]byte(strings.Repeat("k", 64)))
	const text = "the same prompt"
	for _, tc := range []struct {
		name, tenant, client string
		mode                 trust.SaltMode
		same                 bool // as tenant a without a salt of its own
	}{
		{"the tenant again", "a", "", trust.SaltTenant, true},
		{"another tenant", "b", "", trust.SaltTenant, false},
		{"another tenant that names the first's salt", "b", keys.Salt(time.Now(), "a", ""), trust.SaltTenant, false},
		{"the tenant with a salt", "a", "s", trust.SaltTenant, false},
		{"no tenant", "", "", trust.SaltTenant, false},
		{"the mode that lets any salt pass, and the tenant's", "b", keys.Salt(time.Now(), "a", ""), trust.SaltPass, true},
	} {
		cfg := testConfig()
		cfg.Admission.Tenant = "x-tenant"
		w := buildWorld(t, cfg, mixed(workerID, "m"))
		salts := &trust.Salts{Mode: trust.SaltTenant, Keys: keys}
		w.server.deps.Salts = salts
		w.serve()
		ask := func(tenant, client string) picker.Record {
			body := chat("m", strings.Repeat(text+" ", 50))
			if client != "" {
				body = strings.Replace(body, "{", `{"cache_salt":"`+client+`",`, 1)
			}
			g := w.open()
			g.send(post(chatPath, "x-tenant", tenant), requestBody(body, true))
			g.routedHeaders()
			if got := g.streamedBody(0, true); got != body {
				t.Errorf("%s: the EPP edited the body, which is the forwarder's to salt", tc.name)
			}
			g.send(responseHeaders(false, ":status", "200"), responseBody("y", true))
			g.unchanged(kindResponseHeaders)
			g.streamedBody(0, true)
			g.finish()
			records := w.picker.Records()
			return slices.MaxFunc(records, func(a, b picker.Record) int { return a.Time.Compare(b.Time) })
		}
		if first := ask("a", ""); first.HitTokens != 0 || first.BlockTokens == 0 {
			t.Fatalf("%s: the first request hits %d tokens of %d", tc.name, first.HitTokens, first.BlockTokens)
		}
		salts.Mode = tc.mode
		if got := ask(tc.tenant, tc.client); got.HitTokens > 0 != tc.same {
			t.Errorf("%s: %d tokens of %d are expected in the cache", tc.name, got.HitTokens, got.BlockTokens)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	}
}

// security S13: what a client sends is one line of the log, however it is written,
// and its prompt and its credentials are none.
func TestWhatAClientSendsForgesNoLogLine(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	const canary, forged = "CANARY", "\ntime=2026-01-01 level=ERROR msg=forged"
	for _, msgs := range [][]*extprocv3.ProcessingRequest{
		{post(chatPath, "x-request-id", "id"+forged, "authorization", canary, "cookie", canary), requestBody(chat("nobody"+strings.ReplaceAll(forged, "\n", `\n`), canary), true)},
		{post(chatPath, "x-request-id", "id"+forged, "x-api-key", canary), requestBody(`{"model":"m","cache_salt":"`+canary+`","messages":`+canary, true)},
		{post(chatPath+"?api_key="+canary+forged, "x-request-id", "id"+forged), requestBody(`{"model":7,"prompt":"`+canary+`"}`, true)},
	} {
		g := w.open()
		g.send(msgs...)
		g.immediate()
	}
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	log := w.log.String()
	if n := strings.Count(log, "request refused"); n != 3 || strings.Count(log, "msg=forged") == 0 {
		t.Errorf("the log does not tell of the requests:\n%s", log)
	}
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "time=") || strings.HasPrefix(line, "time=2026-01-01 ") || strings.Contains(line, canary) {
			t.Errorf("the log has %q", line)
		}
	}
}

// security S14.
func TestTenThousandModelsMakeOneSeriesAtMost(t *testing.T) {
	w := newWorld(t, testConfig(), mixed(workerID, "m"))
	reg := prometheus.NewRegistry()
	if err := w.server.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := w.picker.Register(reg); err != nil {
		t.Fatal(err)
	}
	series := func() int {
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range all {
			n += len(f.GetMetric())
		}
		return n
	}
	ask := func(model string) {
		g := w.open()
		g.send(post(chatPath), requestBody(chat(model, "x"), true))
		g.immediate()
	}
	ask("nobody")
	before := series()
	var name bytes.Buffer
	for i := range 10000 {
		name.Reset()
		name.WriteString("model-")
		for rest := i; rest > 0; rest /= 10 {
			name.WriteByte(byte('0' + rest%10))
		}
		ask(name.String())
	}
	if after := series(); after > before+1 {
		t.Errorf("%d series became %d", before, after)
	}
}
