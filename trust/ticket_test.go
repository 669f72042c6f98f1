package trust_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"pointsman/trust"
)

var (
	noon  = time.Unix(1_800_000_000, 0)
	first = bytes.Repeat([]byte("a"), 32)
	other = bytes.Repeat([]byte("b"), 32)
)

func route() trust.Route {
	return trust.Route{RequestID: "r-1", Worker: "10.0.0.1:30000", Prefill: "10.0.0.2:30000", Fallback: "10.0.0.3:30000", Host: "api.example"}
}

func TestATicketIsTheMACOfTheContractsFields(t *testing.T) {
	r := route()
	got := string(trust.StaticKeys(first).Sign(nil, noon, &r))
	mac := hmac.New(sha256.New, first)
	mac.Write([]byte("r-1|10.0.0.1:30000|10.0.0.2:30000|10.0.0.3:30000|1800000000|api.example"))
	if want := "v1,1800000000," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); got != want {
		t.Errorf("ticket %q, want %q", got, want)
	}
}

func TestATicketIsGoodForItsRouteAndTimeAlone(t *testing.T) {
	signer := trust.StaticKeys(first)
	r := route()
	good := string(signer.Sign(nil, noon, &r))
	for _, tc := range []struct {
		name   string
		change func(*trust.Route)
		ticket string
		after  time.Duration
		keys   *trust.Keys
		want   error
	}{
		{name: "as it was signed"},
		{name: "the host in capitals", change: func(r *trust.Route) { r.Host = "API.example" }},
		{name: "another request", change: func(r *trust.Route) { r.RequestID = "r-2" }, want: trust.ErrForged},
		{name: "another worker", change: func(r *trust.Route) { r.Worker = "victim" }, want: trust.ErrForged},
		{name: "another prefill worker", change: func(r *trust.Route) { r.Prefill = "victim" }, want: trust.ErrForged},
		{name: "no prefill worker", change: func(r *trust.Route) { r.Prefill = "" }, want: trust.ErrForged},
		{name: "another fallback", change: func(r *trust.Route) { r.Fallback += ",victim" }, want: trust.ErrForged},
		{name: "another host", change: func(r *trust.Route) { r.Host = "elsewhere" }, want: trust.ErrForged},
		{name: "a rank that was not signed", change: func(r *trust.Route) { r.Rank = "3" }, want: trust.ErrForged},
		{name: "a skip that was not signed", change: func(r *trust.Route) { r.PrefillSkip = "true" }, want: trust.ErrForged},
		{name: "fields that run into each other", change: func(r *trust.Route) { r.Worker, r.Prefill = "10.0.0.1:30000|10.0.0.2:30000", "" }, want: trust.ErrForged},
		{name: "another key", keys: trust.StaticKeys(other), want: trust.ErrForged},
		{name: "the old key, which still checks", keys: trust.StaticKeys(other, first)},
		{name: "30 s later", after: 30 * time.Second},
		{name: "31 s later", after: 31 * time.Second, want: trust.ErrSkew},
		{name: "a clock 30 s behind", after: -30 * time.Second},
		{name: "a clock 31 s behind", after: -31 * time.Second, want: trust.ErrSkew},
		{name: "its time moved on", ticket: strings.Replace(good, "1800000000", "1800000031", 1), after: 31 * time.Second, want: trust.ErrForged},
		{name: "none", ticket: "-", want: trust.ErrNoTicket},
		{name: "half of one", ticket: good[:40], want: trust.ErrMalformed},
		{name: "of another version", ticket: "v2" + good[2:], want: trust.ErrMalformed},
		{name: "longer", ticket: good + "AAAA", want: trust.ErrMalformed},
		{name: "huge", ticket: good + strings.Repeat("A", 1<<20), want: trust.ErrMalformed},
	} {
		r, ticket, keys := route(), good, signer
		if tc.change != nil {
			tc.change(&r)
		}
		switch tc.ticket {
		case "":
		case "-":
			ticket = ""
		default:
			ticket = tc.ticket
		}
		if tc.keys != nil {
			keys = tc.keys
		}
		if _, err := trust.NewTickets(keys).Check(noon.Add(tc.after), ticket, &r); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
}

func TestATicketIsGoodForOneAnswer(t *testing.T) {
	keys := trust.StaticKeys(first)
	r := route()
	ticket := string(keys.Sign(nil, noon, &r))
	tickets := trust.NewTickets(keys)
	use, err := tickets.Check(noon, ticket, &r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = tickets.Check(noon, ticket, &r); !errors.Is(err, trust.ErrReplayed) {
		t.Errorf("while it is in use: %v", err)
	}
	use.Done(false)
	if use, err = tickets.Check(noon.Add(time.Second), ticket, &r); err != nil {
		t.Fatalf("the gateway repeats what has failed: %v", err)
	}
	use.Done(true)
	for _, later := range []time.Duration{0, time.Second, 30 * time.Second} {
		if _, err := tickets.Check(noon.Add(later), ticket, &r); !errors.Is(err, trust.ErrReplayed) {
			t.Errorf("%v after it was served: %v", later, err)
		}
	}
	if _, err := tickets.Check(noon.Add(31*time.Second), ticket, &r); !errors.Is(err, trust.ErrSkew) {
		t.Errorf("31 s later: %v", err)
	}
	ticket = string(keys.Sign(nil, noon.Add(time.Minute), &r))
	for n := range 20 { // a gateway does not repeat for ever, and who else does is no gateway
		use, err := tickets.Check(noon.Add(time.Minute), ticket, &r)
		use.Done(false)
		if want := n >= 8; errors.Is(err, trust.ErrReplayed) != want {
			t.Fatalf("failed use %d: %v", n, err)
		}
	}
}

func TestTheMemoryOfTicketsIsBounded(t *testing.T) {
	keys := trust.StaticKeys(first)
	tickets := trust.NewTickets(keys)
	reg := prometheus.NewPedanticRegistry()
	if err := tickets.Register(reg); err != nil {
		t.Fatal(err)
	}
	const n = 70_000
	for i := range n {
		r := trust.Route{RequestID: fmt.Sprint(i), Worker: "w"}
		use, err := tickets.Check(noon, string(keys.Sign(nil, noon, &r)), &r)
		if err != nil {
			t.Fatal(err)
		}
		use.Done(true)
	}
	want := `
		# HELP pointsman_route_tickets_forgotten_total Used tickets that were forgotten before they were too old, for there were too many: these could be used again.
		# TYPE pointsman_route_tickets_forgotten_total counter
		pointsman_route_tickets_forgotten_total 4464
	`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "pointsman_route_tickets_forgotten_total"); err != nil {
		t.Error(err)
	}
	r := trust.Route{RequestID: fmt.Sprint(n - 1), Worker: "w"}
	if _, err := tickets.Check(noon, string(keys.Sign(nil, noon, &r)), &r); !errors.Is(err, trust.ErrReplayed) {
		t.Errorf("the latest: %v", err)
	}
}

func TestKeysRotateWithoutARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := trust.OpenKeys(path, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a missing file is accepted")
	}
	for _, bad := range []string{"", "# nothing\n", "short\n"} {
		write(t, path, bad, noon)
		if _, err := trust.OpenKeys(path, slog.New(slog.DiscardHandler)); err == nil || strings.Contains(err.Error(), "short") {
			t.Errorf("file %q: %v", bad, err)
		}
	}
	log := new(bytes.Buffer)
	write(t, path, string(first)+"\n", noon)
	keys, err := trust.OpenKeys(path, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r := route()
	sign := func(now time.Time) string { return string(keys.Sign(nil, now, &r)) }
	old := string(trust.StaticKeys(first).Sign(nil, noon, &r))
	if got := sign(noon); got != old {
		t.Errorf("signed %s, want %s", got, old)
	}
	now := noon.Add(2 * time.Second)
	write(t, path, "# rotated\n"+string(other)+"\n"+string(first)+"\n", now)
	if got, want := sign(now), string(trust.StaticKeys(other).Sign(nil, now, &r)); got != want {
		t.Errorf("after the rotation: signed %s, want %s", got, want)
	}
	if _, err := trust.NewTickets(keys).Check(now, old, &r); err != nil {
		t.Errorf("a ticket of the old key, while that is in the file: %v", err)
	}
	now = now.Add(2 * time.Second)
	write(t, path, string(other)+"\n", now)
	if _, err := trust.NewTickets(keys).Check(now, old, &r); !errors.Is(err, trust.ErrForged) {
		t.Errorf("a ticket of a key that is gone: %v", err)
	}
	now = now.Add(2 * time.Second)
	write(t, path, "bad", now)
	if got, want := sign(now), string(trust.StaticKeys(other).Sign(nil, now, &r)); got != want {
		t.Errorf("while the file is bad: signed %s, want %s", got, want)
	}
	if text := log.String(); !strings.Contains(text, "unusable") || strings.Contains(text, string(first)) {
		t.Errorf("log %s", text)
	}
}

func write(t *testing.T, path, text string, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestDerivedSaltsKeepTenantsApart(t *testing.T) {
	keys := trust.StaticKeys(first)
	salt := func(tenant, client string) string { return keys.Salt(noon, tenant, client) }
	if salt("org_1", "2345") == salt("org_12345", "") {
		t.Error("a salt runs over into the tenant")
	}
	if salt("x", salt("y", "")) == salt("y", "") {
		t.Error("who sends another tenant's salt gets it")
	}
	if again := salt("x", "a"); again != salt("x", "a") || salt("x", "a") == salt("x", "b") || salt("x", "") == salt("y", "") {
		t.Error("salts do not follow tenant and client")
	}
	if salt("x", "a") == trust.StaticKeys(other).Salt(noon, "x", "a") {
		t.Error("the key does not count")
	}
}

func BenchmarkSign(b *testing.B) {
	keys, r := trust.StaticKeys(first), route()
	buf := make([]byte, 0, trust.TicketSize)
	b.ReportAllocs()
	for b.Loop() {
		buf = keys.Sign(buf[:0], noon, &r)
	}
}

func BenchmarkCheck(b *testing.B) {
	keys, r := trust.StaticKeys(first), route()
	ticket := string(keys.Sign(nil, noon, &r))
	tickets := trust.NewTickets(keys)
	b.ReportAllocs()
	for b.Loop() {
		use, err := tickets.Check(noon, ticket, &r)
		if err != nil && !errors.Is(err, trust.ErrReplayed) {
			b.Fatal(err)
		}
		use.Done(false)
	}
}

func FuzzTicket(f *testing.F) {
	r := route()
	keys := trust.StaticKeys(first)
	good := string(keys.Sign(nil, noon, &r))
	f.Add(good)
	f.Add("v1,,")
	f.Add("v1,1800000000," + strings.Repeat("A", 44))
	f.Add("v1,1800000000," + strings.Repeat("=", 44))
	f.Fuzz(func(t *testing.T, header string) {
		if _, err := trust.NewTickets(keys).Check(noon, header, &r); err == nil && header != good {
			t.Errorf("%q is taken for %q", header, good)
		}
	})
}
