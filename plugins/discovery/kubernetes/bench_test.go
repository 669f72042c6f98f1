package kubernetes

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"pointsman/fleet"
	"pointsman/internal/testfleet"
)

func thousand() []*corev1.Pod {
	all := make([]*corev1.Pod, 1000)
	for i := range all {
		p := testfleet.WorkerPod(namespace, fmt.Sprintf("w-%04d", i), deployment, record(fmt.Sprintf("10.%d.%d.1:30000", i/250, i%250)))
		p.UID = types.UID(p.Name)
		all[i] = p
	}
	return all
}

// One Pod's readiness changes in a fleet of 1,000.
func BenchmarkChange(b *testing.B) {
	src := &Source{cfg: DefaultConfig(), log: slog.New(slog.DiscardHandler), metrics: newMetrics()}
	f := newFollower(src, fleet.NewFeed(new(fleet.Store)))
	all := thousand()
	f.table.replace(all)
	f.feed.Replace(f.table.workers())
	p, ready := all[500], true
	b.ReportAllocs()
	for b.Loop() {
		ready = !ready
		testfleet.SetReady(p, ready)
		f.Put(b.Context(), p)
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
	src, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer src.client.Close()
	b.ReportAllocs()
	for b.Loop() {
		n, from := 0, ""
		for {
			items, _, next, err := src.pods.Page(b.Context(), cfg.Page, from)
			if err != nil {
				b.Fatal(err)
			}
			n, from = n+len(items), next
			if from == "" {
				break
			}
		}
		if n != 1000 {
			b.Fatalf("%d Pods", n)
		}
	}
}
