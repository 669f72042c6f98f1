package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"pointsman/internal/retry"
	"pointsman/internal/stack"
)

// SoakReport is what a soak says: the worst program of each kind of leak.
type SoakReport struct {
	Minutes          float64        `json:"minutes"`
	Requests         int            `json:"requests"`
	Succeeded        int            `json:"succeeded"`
	Violations       map[string]int `json:"violations"`
	GaugesHeld       int            `json:"gauges_not_zero"`
	GoroutineGrowth  int            `json:"goroutine_growth"` // but for those of connections, which descriptors show
	DescriptorGrowth int            `json:"descriptor_growth"`
	HeapGrowth       float64        `json:"heap_growth_mb"`
}

// The bounds of a soak: what grew by more is a leak.
const (
	goroutineSlack  = 2
	descriptorSlack = 4
	heapSlackMB     = 8
	settleAtMost    = 30 * time.Second // until kept connections and retries have come to rest
)

// Failed says what was found, nil for nothing.
func (r *SoakReport) Failed() error {
	var errs []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	add(len(r.Violations) > 0, "invariants were broken: %v", r.Violations)
	add(r.GaugesHeld > 0, "%d gauges are not zero when all is quiet", r.GaugesHeld)
	add(r.GoroutineGrowth > goroutineSlack, "%d goroutines more than at the beginning, those of connections aside", r.GoroutineGrowth)
	add(r.DescriptorGrowth > descriptorSlack, "%d descriptors more than at the beginning", r.DescriptorGrowth)
	add(r.HeapGrowth > heapSlackMB, "the heap grew by %.1f MB", r.HeapGrowth)
	return errors.Join(errs...)
}

// Soak runs rounds of faults on one fleet for about cfg.Break, and compares what
// its programs hold afterwards with what they held after a first, short round.
func Soak(ctx context.Context, cfg Config) (*SoakReport, error) {
	dir, remove, err := logDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	report, err := soak(ctx, cfg, dir)
	if err != nil {
		return nil, fmt.Errorf("soak, seed %d, logs in %s: %w", cfg.Seed, dir, err)
	}
	if report.Failed() == nil && remove {
		return report, os.RemoveAll(dir)
	}
	fmt.Fprintf(cfg.Log, "logs in %s\n", dir)
	return report, nil
}

func soak(ctx context.Context, cfg Config, dir string) (report *SoakReport, err error) {
	starting, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	f, err := startFleet(starting, cfg.Bin, cfg.Envoy, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	start := time.Now()
	report = &SoakReport{Minutes: cfg.Break.Minutes(), Violations: map[string]int{}}
	// What is made once, at first use, is no leak: the first round warms up.
	var base map[string]footprint
	for round := 0; round < 2 || time.Since(start) < cfg.Break; round++ {
		part := cfg
		part.Seed = cfg.Seed + uint64(round)
		part.Break = max(10*time.Second, min(time.Minute, cfg.Break/4))
		if err := f.round(ctx, part, report); err != nil {
			return nil, err
		}
		if err := f.freshGateway(ctx); err != nil {
			return nil, err
		}
		now, err := f.footprints(ctx, base)
		if err != nil {
			return nil, err
		}
		if base == nil {
			base = now
		}
		report.compare(base, now)
		if err := f.keepProfiles(ctx, dir, round); err != nil {
			return nil, err
		}
		fmt.Fprintf(cfg.Log, "round %d: %d requests, %+d goroutines, %+d descriptors, %+.1f MB\n",
			round, report.Requests, report.GoroutineGrowth, report.DescriptorGrowth, report.HeapGrowth)
	}
	return report, nil
}

// round is one schedule, judged.
func (f *fleet) round(ctx context.Context, cfg Config, report *SoakReport) error {
	f.mu.Lock()
	f.killed = nil
	f.mu.Unlock()
	h, kinds, err := f.record(ctx, cfg)
	if err != nil {
		return err
	}
	one := judge(h, kinds, cfg)
	report.Requests += one.Requests
	report.Succeeded += one.Succeeded
	for name, n := range one.Violations {
		report.Violations[name] += n
	}
	report.GaugesHeld = 0
	for _, g := range h.Gauges {
		if g.Value != 0 {
			report.GaugesHeld++
		}
	}
	return nil
}

// freshGateway starts Envoy anew. It keeps a connection to a forwarder for each
// request that it has ever had there at once, so that programs hold more descriptors
// after a busier round; what they hold without those is their own doing.
func (f *fleet) freshGateway(ctx context.Context) error {
	if err := f.Envoy.Stop(stopTime); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := f.Envoy.Start(ctx); err != nil {
		return err
	}
	return f.WaitGateway(ctx, len(f.EPPs))
}

// footprint is what a program holds.
type footprint struct {
	pid         int
	goroutines  int
	descriptors int
	heap        float64 // MB of what is reachable
}

// footprints looks until what the programs hold is no more than in base, or has
// not become less for a while: kept connections are closed by and by.
func (f *fleet) footprints(ctx context.Context, base map[string]footprint) (map[string]footprint, error) {
	least := map[string]footprint{}
	until := time.Now().Add(settleAtMost)
	for {
		var mu sync.Mutex
		var wg sync.WaitGroup
		var errs []error
		for _, p := range f.programs() {
			wg.Go(func() {
				now, err := f.footprint(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
				old, seen := least[p.name]
				if !seen {
					old = now
				}
				least[p.name] = footprint{now.pid, min(old.goroutines, now.goroutines), min(old.descriptors, now.descriptors), min(old.heap, now.heap)}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		if base != nil && within(base, least) || time.Now().After(until) {
			return least, nil
		}
		if !retry.Sleep(ctx, time.Second) {
			return nil, ctx.Err()
		}
	}
}

// footprint looks at one program, behind a collection of its garbage: what is in use
// before one is up to the collector.
func (f *fleet) footprint(ctx context.Context, p program) (footprint, error) {
	if _, err := stack.Get(ctx, f.client, stack.Profiler(p.admin)+"heap?gc=1"); err != nil {
		return footprint{}, fmt.Errorf("%s: %w", p.name, err)
	}
	stacks, err := stack.Get(ctx, f.client, stack.Profiler(p.admin)+"goroutine?debug=1")
	if err != nil {
		return footprint{}, fmt.Errorf("%s: %w", p.name, err)
	}
	m, err := f.Metrics(ctx, p.admin)
	if err != nil {
		return footprint{}, fmt.Errorf("%s: %w", p.name, err)
	}
	out := footprint{
		pid:        f.pid(p.name),
		goroutines: ownGoroutines(string(stacks)),
		heap:       m.Sum("go_memstats_heap_alloc_bytes", nil) / (1 << 20),
	}
	open, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(out.pid), "fd"))
	out.descriptors = len(open)
	return out, err
}

// ownGoroutines counts the goroutines of a profile that serve no connection: one that
// is kept for the next request has up to three, at either end.
func ownGoroutines(profile string) (n int) {
	for group := range strings.SplitSeq(profile, "\n\n") {
		count := groupSize.FindStringSubmatch(group)
		if count == nil || servesConnection.MatchString(group) {
			continue
		}
		of, _ := strconv.Atoi(count[1])
		n += of
	}
	return n
}

var (
	groupSize        = regexp.MustCompile(`(?m)^(\d+) @`)
	servesConnection = regexp.MustCompile(`net/http\.\(\*(persistConn|conn|connReader|http2\w+)\)|grpc/internal/transport\.`)
)

// keepProfiles writes what each program's goroutines do, and who holds its memory, to
// dir: what has grown is found by comparing two rounds.
func (f *fleet) keepProfiles(ctx context.Context, dir string, round int) error {
	for _, p := range f.programs() {
		for _, kind := range [...]string{"goroutine", "heap"} {
			raw, err := stack.Get(ctx, f.client, stack.Profiler(p.admin)+kind+"?debug=1")
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.txt", p.name, kind, round)), raw, 0o600)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

func (f *fleet) pid(name string) int {
	for _, e := range f.EPPs {
		if e.Name == name {
			return e.Process().PID()
		}
	}
	for _, w := range f.Workers {
		if w.Forwarder.Name == name {
			return w.Forwarder.Process().PID()
		}
	}
	return 0
}

// within reports whether nothing in now is larger than in base beyond what the
// bounds allow.
func within(base, now map[string]footprint) bool {
	var r SoakReport
	r.compare(base, now)
	return r.Failed() == nil
}

// compare notes the largest growth of any program. A program that was started
// anew begins anew.
func (r *SoakReport) compare(base, now map[string]footprint) {
	r.GoroutineGrowth, r.DescriptorGrowth, r.HeapGrowth = 0, 0, 0
	for name, n := range now {
		b, known := base[name]
		if !known || b.pid != n.pid {
			base[name] = n
			continue
		}
		r.GoroutineGrowth = max(r.GoroutineGrowth, n.goroutines-b.goroutines)
		r.DescriptorGrowth = max(r.DescriptorGrowth, n.descriptors-b.descriptors)
		r.HeapGrowth = max(r.HeapGrowth, n.heap-b.heap)
	}
}
