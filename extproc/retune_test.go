package extproc

import (
	"strings"
	"testing"
)

// TestNewSettingsAreForNewStreams changes every setting that a reload changes, under
// an open stream: that one ends by what it began with, the next begins with the new.
func TestNewSettingsAreForNewStreams(t *testing.T) {
	cfg := testConfig()
	cfg.MaxBody, cfg.MaxBuffered = 4000, 8000
	w := newWorld(t, cfg, mixed("10.0.0.1:30000", "m"), mixed("10.0.0.2:30000", "m"))
	long := chat("m", strings.Repeat("x", 1500))

	before := w.open()
	before.send(post(chatPath), requestBody(long[:700], false))
	held(t, w, 700)

	next := cfg
	next.MaxBody, next.MaxBuffered, next.ChunkSize, next.Endpoints, next.ClearRouteCache = 1600, 1600, 1024, 2, true
	next.Admission.Tenant = "x-tenant"
	if err := w.server.SetConfig(next); err != nil {
		t.Fatal(err)
	}
	after := w.open()
	after.send(post(chatPath), requestBody(long[:1000], false))
	checkOpenAIError(t, after.immediate(), 429, "admission_memory", true) // 700 are held of 1600

	before.send(requestBody(long[700:], true))
	r := before.receive()
	common := r.GetRequestHeaders().GetResponse()
	if m := mutationsOf(common.GetHeaderMutation()); common.GetClearRouteCache() || strings.Contains(m.set[HeaderDestination], ",") {
		t.Errorf("a stream of before the change is answered by the new settings: %v", common)
	}
	if piece := before.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); len(piece.GetBody()) != len(long) {
		t.Errorf("its body comes in pieces of %d, want %d in one", len(piece.GetBody()), len(long))
	}
	held(t, w, 0)

	after = w.open()
	after.send(post(chatPath), requestBody(long, true))
	r = after.receive()
	common = r.GetRequestHeaders().GetResponse()
	if m := mutationsOf(common.GetHeaderMutation()); !common.GetClearRouteCache() || strings.Count(m.set[HeaderDestination], ",") != 1 {
		t.Errorf("a stream of after the change is answered by the old settings: %v", common)
	}
	if piece := after.receive().GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse(); len(piece.GetBody()) != 1024 {
		t.Errorf("its body comes in pieces of %d, want 1024", len(piece.GetBody()))
	}
	large := w.open()
	large.send(post(chatPath, "content-length", "1601"))
	checkOpenAIError(t, large.immediate(), 413, "request_too_large", false)

	next.MaxInFlight = 1
	if err := w.server.SetConfig(next); err != nil {
		t.Fatal(err)
	}
	crowded := w.open() // two are open
	crowded.send(post(chatPath))
	checkOpenAIError(t, crowded.immediate(), 429, "admission_capacity", true)
}

// TestSettingsThatCannotBeAreRefusedWhole: nothing of them is in force.
func TestSettingsThatCannotBeAreRefusedWhole(t *testing.T) {
	cfg := testConfig()
	cfg.MaxBody, cfg.MaxMessage = 1000, 1000+messageOverhead
	w := newWorld(t, cfg, mixed("10.0.0.1:30000", "m"))
	for want, change := range map[string]func(*Config){
		"endpoints per answer 9": func(c *Config) { c.Endpoints = 9 },
		"restart it for a larger body": func(c *Config) {
			c.MaxBody++
			c.MaxMessage++ // as a configuration read anew would have it
		},
	} {
		next := cfg
		next.ClearRouteCache = true
		change(&next)
		if err := w.server.SetConfig(next); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not the reason: %v", want, err)
		}
	}
	if w.server.cfg.Load().ClearRouteCache {
		t.Error("a part of what was refused is in force")
	}
}
