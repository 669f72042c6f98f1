package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// forwardConfig is what `bench forward` measures.
type forwardConfig struct {
	forwarder string        // the binary
	rounds    int           // alternating rounds per row
	length    time.Duration // of each round
	streams   int           // streamed answers that are relayed in all, to find cut ones
	open      int           // silent streams held open to weigh one
	only      int           // connections of the only rows; 0 for all
	mode      string        // of the only rows; "" for both
	lean      bool          // the client does not decode what streams bring
	envoy     string        // the Envoy binary, a contender too; "" for none
}

// forwardRow is one line of the result. What is compared was measured in turns
// within the same rounds; medians over the rounds.
type forwardRow struct {
	Mode        string  `json:"mode"` // unary, or sse100: a stream of 100 events
	C           int     `json:"c"`    // connections, one request at a time on each
	Ratio       float64 `json:"ratio"`
	VsReference float64 `json:"vs_reference_cpu"` // the forwarder's CPU to the reference's
	CPU         float64 `json:"cpu_us"`           // of the forwarder, per request
	AddedP50    float64 `json:"added_p50_ms"`     // median latency less that of a direct connection
	Allocs      float64 `json:"allocs"`           // of the forwarder, per request
	// RatioOfReference is the reference's ratio, by which results of other machines and
	// clients compare: BASELINE's, of the same kind, had 0.26 and 0.83 at c = 32.
	RatioOfReference float64 `json:"reference_ratio"`
	// Of Envoy, which has one thread and no filter but its router; 0 where it took no part.
	RatioOfEnvoy float64 `json:"envoy_ratio,omitempty"`
	CPUOfEnvoy   float64 `json:"envoy_cpu_us,omitempty"`
}

// forwardResult is the one JSON object.
type forwardResult struct {
	Rows            []forwardRow `json:"rows"`
	KBPerOpenStream float64      `json:"kb_per_open_stream"`
	Streams         int          `json:"streams"`
	StreamsCut      int          `json:"streams_cut"`
	CancelMSMax     float64      `json:"cancel_ms_max"`
}

const (
	modeUnary    = "unary"
	modeSSE      = "sse100"
	forwardModel = "m"
	forwardTries = 20 // clients that leave a silent worker
)

// Forward measures the forwarder in direct mode, in a process of its own, beside
// a direct connection to the same worker, which answers at once, and beside an
// httputil.ReverseProxy that reads the body before it forwards it, and if asked beside
// Envoy. All take turns.
func Forward(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 && args[0] == childFlag {
		return forwardChild(ctx, args[1:], out)
	}
	cfg, err := forwardFlags(args, log)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dir, err := os.MkdirTemp("", "pointsman-bench-")
	if err != nil {
		return fmt.Errorf("bench forward: %w", err)
	}
	defer os.RemoveAll(dir)
	result, err := measureForward(ctx, cfg, childArgs(args), dir, &sharedWriter{w: log})
	if err != nil {
		return fmt.Errorf("bench forward: %w", err)
	}
	return PrintJSON(out, result)
}

func forwardFlags(args []string, log io.Writer) (forwardConfig, error) {
	var cfg forwardConfig
	set := flag.NewFlagSet("bench forward", flag.ContinueOnError)
	set.SetOutput(log)
	set.StringVar(&cfg.forwarder, "forwarder", filepath.Join("bin", "forwarder"), "the forwarder binary")
	set.IntVar(&cfg.rounds, "rounds", 35, "alternating rounds per row; the median counts")
	set.DurationVar(&cfg.length, "round", 200*time.Millisecond, "duration of each round: short ones, for a machine's speed may drift within a second")
	set.IntVar(&cfg.streams, "streams", 100_000, "streams relayed in all, each checked to its last event")
	set.IntVar(&cfg.open, "open", 1000, "silent streams held open to weigh one")
	set.IntVar(&cfg.only, "c", 0, "measure only the rows of this many connections: 1, 32 or 128; 0 for all")
	set.StringVar(&cfg.mode, "mode", "", "measure only the rows of this mode: unary or sse100; empty for both")
	set.BoolVar(&cfg.lean, "lean", false, "let the client look for the ends of events only, and not decode them")
	set.StringVar(&cfg.envoy, "envoy", "", "the Envoy binary, to be measured too; empty for none")
	if err := set.Parse(args); err != nil {
		return cfg, err
	}
	if cfg.rounds < 1 || cfg.length < 50*time.Millisecond || cfg.open < 1 || cfg.streams < 0 {
		return cfg, errors.New("bench forward: give at least one round of 50ms and one open stream")
	}
	return cfg, nil
}

// forwardRig is the running parts.
type forwardRig struct {
	worker    *forwardPart
	reference *forwardPart
	forwarder *forwardPart
	envoy     *forwardPart // nil for none
	lean      bool         // see forwardConfig
	log       io.Writer
}

func measureForward(ctx context.Context, cfg forwardConfig, self []string, dir string, log io.Writer) (*forwardResult, error) {
	rig, err := startForwardRig(ctx, cfg, self, dir, log)
	if err != nil {
		return nil, err
	}
	defer rig.stop()
	result := &forwardResult{}
	if result.KBPerOpenStream, err = rig.weigh(ctx, cfg.open); err != nil { // first: on a heap that has seen no load
		return nil, err
	}
	for _, mode := range []string{modeUnary, modeSSE} {
		for _, c := range []int{1, 32, 128} {
			if cfg.only != 0 && cfg.only != c || cfg.mode != "" && cfg.mode != mode {
				continue
			}
			if err = rig.row(ctx, cfg, mode, c, result); err != nil {
				return nil, err
			}
		}
	}
	for left := cfg.streams - result.Streams; left > 0; left = cfg.streams - result.Streams {
		load := &forwardLoad{part: rig.forwarder, mode: modeSSE, c: 32, lean: rig.lean, most: min(left, 5000)}
		var got forwardRound
		got, err = load.run(ctx, time.Minute)
		load.close()
		if err != nil {
			return nil, err
		}
		result.Streams += got.done
		result.StreamsCut += got.cut
	}
	if result.CancelMSMax, err = rig.leave(ctx, forwardTries); err != nil {
		return nil, err
	}
	return result, nil
}

// forwardSamples is one contender's rounds.
type forwardSamples struct{ rps, cpu, p50, allocs, worker, client []float64 }

// row measures one row: a round of each contender in turn.
func (rig *forwardRig) row(ctx context.Context, cfg forwardConfig, mode string, c int, result *forwardResult) error {
	parts := []*forwardPart{rig.worker, rig.reference, rig.forwarder}
	if rig.envoy != nil {
		parts = append(parts, rig.envoy)
	}
	all := make([]forwardSamples, len(parts))
	loads := make([]*forwardLoad, len(parts))
	for i, part := range parts {
		loads[i] = &forwardLoad{part: part, mode: mode, c: c, lean: rig.lean}
		defer loads[i].close()
	}
	for round := range cfg.rounds + 1 {
		for turn := range parts {
			which := (round + turn) % len(parts)
			got, err := rig.round(ctx, loads[which], cfg.length)
			if err != nil {
				return err
			}
			if parts[which] == rig.forwarder && mode == modeSSE {
				result.Streams += got.done
				result.StreamsCut += got.cut
			}
			if round > 0 { // the first warms up
				all[which].add(got)
			}
		}
	}
	direct, reference, mine := &all[0], &all[1], &all[2]
	row := forwardRow{
		Mode: mode, C: c,
		Ratio:       Round(ratios(mine.rps, direct.rps), 3),
		VsReference: Round(ratios(mine.cpu, reference.cpu), 3),
		CPU:         Round(Median(mine.cpu), 1),
		AddedP50:    Round(Median(mine.p50)-Median(direct.p50), 3),
		Allocs:      Round(Median(mine.allocs), 1),

		RatioOfReference: Round(ratios(reference.rps, direct.rps), 3),
	}
	fmt.Fprintf(rig.log, "%s c=%d: %.3f of direct (%.0f/s), %.1f µs CPU, %.2f x reference (%.1f µs, %.3f of direct), p50 +%.3f ms, %.1f allocations; worker and client %.0f + %.0f µs direct, %.0f + %.0f behind it\n",
		mode, c, row.Ratio, Median(direct.rps), row.CPU, row.VsReference, Median(reference.cpu), row.RatioOfReference, row.AddedP50, row.Allocs,
		Median(direct.worker), Median(direct.client), Median(mine.worker), Median(mine.client))
	if rig.envoy != nil {
		envoy := &all[3]
		row.RatioOfEnvoy, row.CPUOfEnvoy = Round(ratios(envoy.rps, direct.rps), 3), Round(Median(envoy.cpu), 1)
		fmt.Fprintf(rig.log, "  Envoy %.3f of direct, %.1f µs CPU\n", row.RatioOfEnvoy, row.CPUOfEnvoy)
	}
	result.Rows = append(result.Rows, row)
	return nil
}

func (s *forwardSamples) add(got forwardRound) {
	s.rps, s.cpu = append(s.rps, got.rps), append(s.cpu, got.cpu)
	s.p50, s.allocs = append(s.p50, got.p50), append(s.allocs, got.allocs)
	s.worker, s.client = append(s.worker, got.worker), append(s.client, got.client)
}

// ratios returns the median of the rounds' own ratios, which a machine whose
// speed drifts changes least. It keeps the order of its arguments.
func ratios(of, to []float64) float64 {
	each := make([]float64, len(of))
	for i := range of {
		each[i] = of[i] / to[i]
	}
	return Median(each)
}
