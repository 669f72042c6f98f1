package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"pointsman/internal/stack"
	"pointsman/internal/traffic"
)

func TestADemoFleetIsOneOfThreeKindsAndLargeEnough(t *testing.T) {
	for _, tt := range []struct {
		kind    fleetKind
		workers int
		says    string
	}{
		{httpFleet, 2, ""},
		{natsFleet, 2, ""},
		{pdFleet, 4, ""},
		{httpFleet, 1, "at least 2"},
		{pdFleet, 3, "at least 4"},
		{"smoke", 6, "http, nats or pd"},
	} {
		err := tt.kind.validate(tt.workers)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s with %d: %v, want %q", tt.kind, tt.workers, err, tt.says)
		}
	}
	t.Setenv("FLEET", "pd")
	cfg, err := parseDemo([]string{"--envoy", "x"}, t.Output())
	if err != nil || cfg.fleet != pdFleet {
		t.Errorf("FLEET=pd is %q, %v", cfg.fleet, err)
	}
	if cfg, err = parseDemo([]string{"--envoy", "x", "--fleet", "nats"}, t.Output()); err != nil || cfg.fleet != natsFleet {
		t.Errorf("the flag over FLEET: %q, %v", cfg.fleet, err)
	}
}

func TestEachKindOfFleetHasItsParts(t *testing.T) {
	roles := func(c *stack.Config) string {
		var all []string
		for _, w := range c.Workers {
			all = append(all, w.Role)
		}
		return strings.Join(all, ",")
	}
	for _, tt := range []struct {
		kind   fleetKind
		broker bool
		roles  string
		rate   string
	}{
		{httpFleet, false, ",,,,", "4000"},
		{natsFleet, true, ",,,,", "4000"},
		{pdFleet, false, "prefill,prefill,decode,decode,decode", "8000"},
	} {
		var cfg stack.Config
		tt.kind.dress(&cfg, 5, false)
		if got := roles(&cfg); got != tt.roles || (cfg.Broker != nil) != tt.broker || !slices.Contains(cfg.Workers[0].Args, tt.rate) {
			t.Errorf("%s: roles %s, broker %v, %v", tt.kind, got, cfg.Broker, cfg.Workers[0].Args)
		}
	}
}

// twoLegs returns the legs of a request that found each other.
func twoLegs(request, room, decode string) []pdLeg {
	return []pdLeg{
		{Request: request, Leg: "prefill", Worker: "p:1", Room: room, Partner: decode, Outcome: "complete", Prompt: 100, Cached: 40},
		{Request: request, Leg: "decode", Worker: decode, Room: room, Partner: "p:1", Outcome: "complete", Prompt: 100, Cached: 99},
	}
}

func TestLegsArePairedByRoom(t *testing.T) {
	good := slices.Concat(twoLegs("a", "1", "d:1"), twoLegs("b", "2", "d:2"))
	change := func(f func(legs []pdLeg)) []pdLeg {
		legs := slices.Clone(good)
		f(legs)
		return legs
	}
	results := []traffic.Result{at("a", "d:1", 0, 1, "ok"), at("b", "d:2", 0, 1, "ok"), at("c", "d:9", 0, 1, "interrupted")}
	lostAt := func(partner, outcome, request string) []pdLeg {
		return append(slices.Clone(good), pdLeg{Request: request, Leg: "prefill", Worker: "p:1", Room: "3", Partner: partner, Outcome: outcome})
	}
	for _, tt := range []struct {
		name                 string
		legs                 []pdLeg
		victim               string
		pairs, lost, orphans int
	}{
		{"two pairs", good, "", 2, 0, 0},
		{"a decode leg alone", good[1:], "", 1, 0, 1},
		{"a prefill leg alone", good[:3], "", 1, 0, 1},
		{"a leg without a room", change(func(l []pdLeg) { l[0].Room = "" }), "", 1, 0, 2},
		{"legs that met others", change(func(l []pdLeg) { l[0].Partner = "d:7" }), "", 1, 0, 2},
		{"two requests in one room", change(func(l []pdLeg) { l[0].Request = "z" }), "", 1, 0, 2},
		{"a room that came twice", append(slices.Clone(good), good[0]), "", 1, 0, 3},
		{"a leg whose partner was killed", lostAt("d:9", "complete", "c"), "d:9", 2, 1, 0},
		{"a leg called off when its partner was killed", lostAt("", "aborted", "c"), "d:9", 2, 1, 0},
		{"a leg called off, its request served by another pair", lostAt("", "aborted", "a"), "d:9", 2, 1, 0},
		{"a leg called off for no reason", lostAt("", "aborted", "x"), "d:9", 2, 0, 1},
		{"a leg called off although nobody was killed", lostAt("", "aborted", "a"), "", 2, 0, 1},
		{"a leg that waited in vain", lostAt("", "rejected", "a"), "d:9", 2, 0, 1},
	} {
		p := pair(tt.legs, results, tt.victim)
		if p.pairs != tt.pairs || p.lost != tt.lost || len(p.orphans) != tt.orphans {
			t.Errorf("%s: %d pairs, %d lost, orphans %+v; want %d, %d, %d", tt.name, p.pairs, p.lost, p.orphans, tt.pairs, tt.lost, tt.orphans)
		}
	}
	if p := pair(good, results, ""); p.hit != .4 { // where the prompt is computed, not where its cache arrives
		t.Errorf("hit ratio %v", p.hit)
	}
}

func TestTheDemoSaysWhichLegIsAloneAndWhatTheBrokerCarried(t *testing.T) {
	baseline, kv := ran(90, .1, at("a", "v", 0, 10, "ok")), ran(50, .45, at("a", "v", 0, 10, "ok"), at("b", "v", 0, 10, "ok"))
	kv.victim = "d:9"
	three, one := 3., 1.
	kv.carried, kv.pairing = &three, &pairing{pairs: 2}
	report, faults := judge(baseline, kv)
	if len(faults) > 0 || *report.OverNATS != three || *report.Pairs != 2 || *report.Orphans != 0 || *report.Lost != 0 {
		t.Errorf("report %+v, faults %v", report, faults)
	}
	kv.carried, kv.pairing = &one, &pairing{pairs: 1, orphans: []pdLeg{{Request: "b", Leg: "decode", Worker: "d:1"}}}
	_, faults = judge(baseline, kv)
	for _, says := range []string{"the broker carried only 1", "the decode leg of b at d:1", "only 1 pairs"} {
		if !slices.ContainsFunc(faults, func(err error) bool { return strings.Contains(err.Error(), says) }) {
			t.Errorf("nothing says %q: %v", says, faults)
		}
	}
}

func TestReceiptsOfTheKilledEngineAreNotAskedFor(t *testing.T) {
	engine := func(body string) *stack.Worker {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		t.Cleanup(server.Close)
		return &stack.Worker{ID: server.URL, Control: server.URL}
	}
	s := &stack.Stack{Workers: []*stack.Worker{
		engine(`[{"request_id":"a","leg":"prefill","room":"1","partner":"d","outcome":"complete"}]`),
		{ID: "gone", Control: "http://127.0.0.1:1"},
	}}
	legs, err := legsOf(t.Context(), s, "gone")
	if err != nil || len(legs) != 1 || legs[0].Room != "1" {
		t.Errorf("%+v, %v", legs, err)
	}
	if _, err = legsOf(t.Context(), s, ""); err == nil {
		t.Error("an engine that does not answer is no error")
	}
	s.Workers[1] = engine("no JSON")
	if _, err = legsOf(t.Context(), s, ""); err == nil {
		t.Error("receipts that are no JSON are no error")
	}
}
