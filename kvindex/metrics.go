package kvindex

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Why an event or a batch was skipped.
const (
	skipDecoder   = iota // the decoder could not use it
	skipHashCount        // number of hashes is not the number of full blocks
	skipBlockSize        // block size below 1
	skipKind             // unknown kind
	numSkips
)

func skipNames() [numSkips]string {
	return [numSkips]string{"decoder", "hash_count", "block_size", "kind"}
}

const numResets = 8

func resetNames() [numResets]string {
	return [numResets]string{ResetGap, ResetRestart, ResetIncarnation, ResetReconnect, ResetResync, ResetLost, ResetBlockSize, "other"}
}

func resetIndex(reason string) int {
	names := resetNames()
	if i := slices.Index(names[:], reason); i >= 0 {
		return i
	}
	return numResets - 1
}

// counters are the index's; they outlive targets.
type counters struct {
	skipped [numSkips]atomic.Uint64
	resets  [numResets]atomic.Uint64
}

// targetCounters are one target's, gone with it.
type targetCounters struct {
	stored, removed, cleared atomic.Uint64 // events
	orphans                  atomic.Uint64 // stored events with an unknown parent
	gaps, duplicates         atomic.Uint64
	blockSizes               atomic.Uint64 // changes of block size
	extra, tiered            atomic.Int64  // entries of the side tables
}

type descs struct {
	view, predicted, mode, partial         *prometheus.Desc
	events, orphans, gaps, duplicates      *prometheus.Desc
	blockSizes, extra, tiered              *prometheus.Desc
	skipped, resets, runs, arena, arenaCap *prometheus.Desc
}

func newDescs() *descs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	const id = "worker_id"
	return &descs{
		view:       desc("infera_policy_cache_view_size", "Blocks that the target's events say it holds.", id),
		predicted:  desc("pointsman_kvindex_predicted_blocks", "Blocks that are assumed to be on the target.", id),
		mode:       desc("pointsman_kvindex_mode", "What is known of the target: 0 nothing, 1 predictions, 2 its events.", id),
		partial:    desc("pointsman_kvindex_partial", "1 while the target may hold blocks that its view lacks.", id),
		events:     desc("pointsman_kvindex_events_total", "Cache events applied, by kind.", id, "kind"),
		orphans:    desc("pointsman_kvindex_unknown_parents_total", "Stored events dropped because their parent block is not known.", id),
		gaps:       desc("pointsman_kvindex_gaps_total", "Gaps in the sequence of the target's batches.", id),
		duplicates: desc("pointsman_kvindex_duplicates_total", "Batches ignored because they were applied before.", id),
		blockSizes: desc("pointsman_kvindex_block_size_changes_total", "Views dropped because the events' block size changed.", id),
		extra:      desc("pointsman_kvindex_extra_hashes", "Blocks that more than one engine hash names.", id),
		tiered:     desc("pointsman_kvindex_tiered_blocks", "Engine hashes that are not on the device tier alone.", id),
		skipped:    desc("pointsman_kvindex_skipped_events_total", "Cache events that could not be used, by reason.", "reason"),
		resets:     desc("pointsman_kvindex_resets_total", "Views dropped and started over, by reason.", "reason"),
		runs:       desc("pointsman_kvindex_runs", "Pieces of chains in the index."),
		arena:      desc("pointsman_kvindex_arena_used_bytes", "Memory in use for block hashes."),
		arenaCap:   desc("pointsman_kvindex_arena_bytes", "Memory taken for block hashes."),
	}
}

// collector reads the index when it is scraped, so the series of targets that
// were forgotten are gone without being deleted.
type collector struct {
	x *Index
	d *descs
}

// Register makes the index's metrics part of reg.
func (x *Index) Register(reg prometheus.Registerer) error {
	if err := reg.Register(&collector{x: x, d: newDescs()}); err != nil {
		return fmt.Errorf("kvindex: register metrics: %w", err)
	}
	return nil
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.d.view, c.d.predicted, c.d.mode, c.d.partial, c.d.events, c.d.orphans, c.d.gaps, c.d.duplicates,
		c.d.blockSizes, c.d.extra, c.d.tiered, c.d.skipped, c.d.resets, c.d.runs, c.d.arena, c.d.arenaCap,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	x, d := c.x, c.d
	now := x.clock.Load()
	for _, t := range *x.table.Load() {
		if t == nil {
			continue
		}
		gauge(d.view, float64(t.blocks.Load()), t.key)
		gauge(d.predicted, float64(t.predicted.Load()), t.key)
		gauge(d.mode, float64(x.mode(t, now)), t.key)
		partial := 0.0
		if t.partial.Load() {
			partial = 1
		}
		gauge(d.partial, partial, t.key)
		count(d.events, t.counts.stored.Load(), t.key, Stored.String())
		count(d.events, t.counts.removed.Load(), t.key, Removed.String())
		count(d.events, t.counts.cleared.Load(), t.key, Cleared.String())
		count(d.orphans, t.counts.orphans.Load(), t.key)
		count(d.gaps, t.counts.gaps.Load(), t.key)
		count(d.duplicates, t.counts.duplicates.Load(), t.key)
		count(d.blockSizes, t.counts.blockSizes.Load(), t.key)
		gauge(d.extra, float64(t.counts.extra.Load()), t.key)
		gauge(d.tiered, float64(t.counts.tiered.Load()), t.key)
	}
	for i := range x.counts.skipped {
		count(d.skipped, x.counts.skipped[i].Load(), skipNames()[i])
	}
	for i := range x.counts.resets {
		count(d.resets, x.counts.resets[i].Load(), resetNames()[i])
	}
	runs, used, total := x.sizes()
	gauge(d.runs, float64(runs))
	gauge(d.arena, float64(used))
	gauge(d.arenaCap, float64(total))
}

// sizes returns the number of runs, and the bytes of the arena used and taken.
func (x *Index) sizes() (runs, used, total int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t := &x.tree
	all := len(t.arena.owner)
	return t.headsLive, (all - t.arena.free) * groupWords * 8, all * groupWords * 8
}
