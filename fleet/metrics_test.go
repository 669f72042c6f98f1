package fleet

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	store := new(Store)
	feed := NewFeed(store)
	reg := prometheus.NewPedanticRegistry()
	if err := store.Register(reg); err != nil {
		t.Fatal(err)
	}
	if err := store.Register(reg); err == nil {
		t.Error("registered twice without an error")
	}
	const head = `
# HELP infera_active_workers Active workers by their role.
# TYPE infera_active_workers gauge
`
	const connected = `
# HELP pointsman_fleet_connected 1 while discovery is in step, 0 when the fleet is the last known one.
# TYPE pointsman_fleet_connected gauge
pointsman_fleet_connected `
	const skipped = `
# HELP pointsman_fleet_records_skipped_total Worker records that could not be used, by the field at fault.
# TYPE pointsman_fleet_records_skipped_total counter
`
	want := func(name, text string) {
		t.Helper()
		err := testutil.GatherAndCompare(reg, strings.NewReader(text),
			"infera_active_workers", "pointsman_fleet_connected", "pointsman_fleet_records_skipped_total")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	want("before the first listing", head+`infera_active_workers{disagg_mode="decode"} 0
infera_active_workers{disagg_mode="mixed"} 0
infera_active_workers{disagg_mode="prefill"} 0
`+connected+"0\n")
	if n, err := testutil.GatherAndCount(reg, "pointsman_fleet_staleness_seconds"); n != 0 || err != nil {
		t.Errorf("%d series of staleness before the first listing, %v", n, err)
	}

	feed.Replace([]*Worker{
		worker("a"), worker("b"),
		worker("c", func(w *Worker) { w.Role = Prefill }),
		worker("d", func(w *Worker) { w.Role, w.Status = Decode, Draining }),
	})
	feed.Skip("url")
	feed.Skip("url")
	feed.Skip("json")
	want("with a fleet", head+`infera_active_workers{disagg_mode="decode"} 0
infera_active_workers{disagg_mode="mixed"} 2
infera_active_workers{disagg_mode="prefill"} 1
`+connected+"1\n"+skipped+`pointsman_fleet_records_skipped_total{reason="json"} 1
pointsman_fleet_records_skipped_total{reason="url"} 2
`)
	if n, err := testutil.GatherAndCount(reg, "pointsman_fleet_staleness_seconds"); n != 1 || err != nil {
		t.Errorf("%d series of staleness, %v", n, err)
	}
	if problems, err := testutil.GatherAndLint(reg); len(problems) > 0 || err != nil {
		t.Errorf("lint: %v, %v", problems, err)
	}

	feed.Lost()
	if got := testutil.CollectAndCount(&collector{
		store:     store,
		active:    prometheus.NewDesc("a", "", []string{"m"}, nil),
		connected: prometheus.NewDesc("b", "", nil, nil),
		staleness: prometheus.NewDesc("c", "", nil, nil),
		conflicts: prometheus.NewDesc("e", "", nil, nil),
		skipped:   prometheus.NewDesc("d", "", []string{"r"}, nil),
	}); got != 8 {
		t.Errorf("%d series when lost, want 8", got)
	}
}
