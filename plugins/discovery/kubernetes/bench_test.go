package kubernetes

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
)

func thousand() []corev1.Pod {
	all := make([]corev1.Pod, 1000)
	for i := range all {
		p := testfleet.WorkerPod(namespace, fmt.Sprintf("w-%04d", i), deployment, record(fmt.Sprintf("10.%d.%d.1:30000", i/250, i%250)))
		p.UID = types.UID(p.Name)
		all[i] = *p
	}
	return all
}

// One Pod's readiness changes in a fleet of 1,000.
func BenchmarkChange(b *testing.B) {
	src := &Source{cfg: DefaultConfig(), log: slog.New(slog.DiscardHandler), metrics: newMetrics()}
	f := &follower{Source: src, feed: fleet.NewFeed(new(fleet.Store)), table: newTable(src.cfg), contested: map[string]bool{}}
	all := thousand()
	f.table.replace(all)
	f.feed.Replace(f.table.workers())
	p, ready := &all[500], true
	b.ReportAllocs()
	for b.Loop() {
		ready = !ready
		testfleet.SetReady(p, ready)
		if err := f.apply(b.Context(), watch.Event{Type: watch.Modified, Object: p}); err != nil {
			b.Fatal(err)
		}
	}
}

// 1,000 Pods that did not change are listed again.
func BenchmarkRelist(b *testing.B) {
	table, all := newTable(DefaultConfig()), thousand()
	table.replace(all)
	b.ReportAllocs()
	for b.Loop() {
		table.replace(all)
	}
}

// 1,000 Pods come over the wire, in two pages.
func BenchmarkListing(b *testing.B) {
	k := testfleet.StartKube(b)
	for _, p := range thousand() {
		k.Put(b, testfleet.KubePods, p)
	}
	cfg := impatient(k.Kubeconfig(b, "")).withDefaults()
	src, err := newPods(cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer src.conns.CloseAll()
	b.ReportAllocs()
	for b.Loop() {
		n, from := 0, ""
		for {
			page, err := src.list(b.Context(), cfg.Page, from)
			if err != nil {
				b.Fatal(err)
			}
			n, from = n+len(page.Items), page.Continue
			if from == "" {
				break
			}
		}
		if n != 1000 {
			b.Fatalf("%d Pods", n)
		}
	}
}
