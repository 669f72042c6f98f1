package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// extProcConfig is what `bench extproc` measures.
type extProcConfig struct {
	epp    string        // the EPP binary; "self" serves the same rooms from this one
	rounds int           // alternating rounds per row
	busy   time.Duration // CPU time that a round should make the server use
	only   int           // workers of the only rows to measure; 0 for all
	least  int           // requests that a round has at least
	most   int           // and at most
	exact  string        // script that fetches a tokenizer for the rows with exact tokens; "" leaves them out
}

// extProcRow is one line of the result.
type extProcRow struct {
	Workers     int     `json:"workers"`
	PromptBytes int     `json:"prompt_bytes"`
	Tokens      string  `json:"tokens"` // approx: blocks of bytes; exact: tokenized in the EPP
	C           int     `json:"c"`      // requests at a time
	RPS         float64 `json:"rps"`
	P50         float64 `json:"p50_ms"`
	P99         float64 `json:"p99_ms"`
	CPU         float64 `json:"cpu_ms"` // of the server, per request
	Allocs      float64 `json:"allocs"` // of the server, per request
	VsReference float64 `json:"vs_reference"`
}

// extProcResult is the one JSON object.
type extProcResult struct {
	Rows              []extProcRow `json:"rows"`
	ChunkUS           float64      `json:"chunk_us"` // CPU per passed response chunk
	ChunkUSReference  float64      `json:"chunk_us_reference"`
	ChunkAllocs       float64      `json:"chunk_allocs"`
	ReferenceCPU      []float64    `json:"reference_cpu_ms"` // of each row, per request
	SingleConnections bool         `json:"one_connection"`
}

const (
	extProcStreams = 4   // requests at a time
	responseChunks = 200 // of the streamed response that chunk_us is measured with
	largePrompt    = 100 << 10
	smallPrompt    = 1 << 10
	extProcModel   = "m"
	childFlag      = "--child" // hidden: be one of the measured servers
	childReference = "reference"
	childEPP       = "epp"
	leastRequests  = 200
	mostRequests   = 20_000
	approxTokens   = "approx"
	exactTokens    = "exact"
)

// ExtProc measures a running EPP as Envoy would use it, FULL_DUPLEX_STREAMED and
// kv-aware, without a tokenizer and with a real model's in its process, beside a plain grpc-go server that answers a
// constant. Both run in processes of their own and take turns, so that what the
// machine does meanwhile hits both.
func ExtProc(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 && args[0] == childFlag {
		return extProcChild(ctx, args[1:], out)
	}
	cfg, err := extProcFlags(args, log)
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dir, err := os.MkdirTemp("", "pointsman-bench-")
	if err != nil {
		return fmt.Errorf("bench extproc: %w", err)
	}
	defer os.RemoveAll(dir)
	result, err := measureExtProc(ctx, cfg, childArgs(args), dir, &sharedWriter{w: log})
	if err != nil {
		return fmt.Errorf("bench extproc: %w", err)
	}
	return PrintJSON(out, result)
}

// sharedWriter lets the servers' output and ours be written to one place.
type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write writes all of p without another's bytes in between.
func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

func extProcFlags(args []string, log io.Writer) (extProcConfig, error) {
	cfg := extProcConfig{least: leastRequests, most: mostRequests}
	set := flag.NewFlagSet("bench extproc", flag.ContinueOnError)
	set.SetOutput(log)
	set.StringVar(&cfg.epp, "epp", filepath.Join("bin", "epp"), `the EPP binary; "self" serves the same rooms from this program`)
	set.IntVar(&cfg.rounds, "rounds", 5, "alternating rounds per row; the median counts")
	set.DurationVar(&cfg.busy, "busy", 600*time.Millisecond, "CPU time that each round should take")
	set.StringVar(&cfg.exact, "prepare", "tools/parity_tokens.py", "script that fetches a real model's tokenizer for the rows with exact tokens; empty leaves them out")
	set.IntVar(&cfg.only, "workers", 0, "measure only the rows of this fleet size, 8 or 200; 0 for both")
	if err := set.Parse(args); err != nil {
		return cfg, err
	}
	if cfg.rounds < 1 || cfg.busy < 100*time.Millisecond {
		return cfg, errors.New("bench extproc: give at least one round and a busy time of 100ms")
	}
	return cfg, nil
}

// childArgs is how this program is called to be a child: as it was itself, with
// the hidden flag in place of args.
func childArgs(args []string) []string {
	all := os.Args[1:]
	if len(all) < len(args) {
		return []string{childFlag}
	}
	return append(append([]string{}, all[:len(all)-len(args)]...), childFlag)
}

// contender is a server under load and what its rounds gave.
type contender struct {
	*process
	client *extProcClient
	bodies bodySource
	perReq time.Duration // CPU of one request, found while warming up
}

// sample is one round of one contender, per request.
type sample struct {
	cpu, rps, p50, p99, allocs float64
}

func measureExtProc(ctx context.Context, cfg extProcConfig, self []string, dir string, log io.Writer) (*extProcResult, error) {
	reference, err := startReference(ctx, self, log)
	if err != nil {
		return nil, err
	}
	defer reference.stop()
	result := &extProcResult{SingleConnections: true}
	for _, workers := range []int{8, 200} {
		if cfg.only != 0 && cfg.only != workers {
			continue
		}
		var epp *process
		epp, err = startEPP(ctx, cfg.epp, self, dir, workers, "", log)
		if err != nil {
			return nil, err
		}
		err = measureFleet(ctx, cfg, epp, reference, workers, result, log)
		epp.stop()
		if err != nil {
			return nil, err
		}
	}
	if cfg.exact != "" {
		err = measureExact(ctx, cfg, reference, dir, result, log)
	}
	return result, err
}

// measureFleet fills the rows of one fleet size.
func measureFleet(ctx context.Context, cfg extProcConfig, epp, reference *process, workers int, result *extProcResult, log io.Writer) error {
	for _, size := range []int{smallPrompt, largePrompt} {
		mine, theirs, err := measurePair(ctx, cfg, epp, reference, sameBodies(extProcBodies(size)), 0)
		if err != nil {
			return err
		}
		result.add(extProcRow{Workers: workers, PromptBytes: size, Tokens: approxTokens, C: extProcStreams}, mine, theirs, log)
	}
	if result.ChunkUS != 0 {
		return nil
	}
	return measureChunks(ctx, cfg, epp, reference, result, log)
}

// add completes a row by its samples.
func (result *extProcResult) add(row extProcRow, mine, theirs []sample, log io.Writer) {
	row.CPU, row.RPS = Round(medianOf(mine, cpuOf), 4), Round(medianOf(mine, rpsOf), 0)
	row.P50, row.P99 = Round(medianOf(mine, p50Of), 3), Round(medianOf(mine, p99Of), 3)
	row.Allocs = Round(medianOf(mine, allocsOf), 1)
	row.VsReference = Round(ratio(mine, theirs), 3)
	result.Rows = append(result.Rows, row)
	result.ReferenceCPU = append(result.ReferenceCPU, Round(medianOf(theirs, cpuOf), 4))
	fmt.Fprintf(log, "%d workers, %d bytes, %s tokens: %.0f requests/s, p50 %.3f ms, p99 %.3f ms, CPU %.4f ms, %.1f allocations, %.2f x reference (%.4f ms, %.1f allocations)\n",
		row.Workers, row.PromptBytes, row.Tokens, row.RPS, row.P50, row.P99, row.CPU, row.Allocs, row.VsReference, medianOf(theirs, cpuOf), medianOf(theirs, allocsOf))
}

// measureChunks finds what a response chunk costs: requests with a streamed
// response against requests with one of a single chunk.
func measureChunks(ctx context.Context, cfg extProcConfig, epp, reference *process, result *extProcResult, log io.Writer) error {
	bodies := sameBodies(extProcBodies(smallPrompt))
	base, baseTheirs, err := measurePair(ctx, cfg, epp, reference, bodies, 1)
	if err != nil {
		return err
	}
	full, fullTheirs, err := measurePair(ctx, cfg, epp, reference, bodies, responseChunks+1)
	if err != nil {
		return err
	}
	perChunk := func(full, base []sample, of func(sample) float64) float64 {
		return (medianOf(full, of) - medianOf(base, of)) / responseChunks
	}
	result.ChunkUS = Round(1000*perChunk(full, base, cpuOf), 2)
	result.ChunkUSReference = Round(1000*perChunk(fullTheirs, baseTheirs, cpuOf), 2)
	result.ChunkAllocs = Round(perChunk(full, base, allocsOf), 1)
	fmt.Fprintf(log, "a response chunk: %.2f µs (reference %.2f), %.1f allocations\n", result.ChunkUS, result.ChunkUSReference, result.ChunkAllocs)
	if result.ChunkUS <= 0 {
		return errors.New("the chunks cost less than nothing: the machine is too busy to measure; try again with a larger --busy")
	}
	return nil
}

// measurePair lets both servers do the same requests in turn.
func measurePair(ctx context.Context, cfg extProcConfig, epp, reference *process, bodies bodySource, chunks int) (mine, theirs []sample, err error) {
	pair := make([]*contender, 2)
	for i, s := range []*process{epp, reference} {
		client, err := dialExtProc(s.addr, chunks)
		if err != nil {
			return nil, nil, err
		}
		defer client.close()
		pair[i] = &contender{process: s, client: client, bodies: bodies}
		if err := pair[i].warm(ctx, cfg.least); err != nil {
			return nil, nil, err
		}
	}
	for round := range cfg.rounds {
		for turn := range pair {
			c := pair[(round+turn)%2]
			got, err := c.measure(ctx, min(cfg.most, max(cfg.least, int(cfg.busy/c.perReq))))
			if err != nil {
				return nil, nil, err
			}
			if c == pair[0] {
				mine = append(mine, got)
			} else {
				theirs = append(theirs, got)
			}
		}
	}
	return mine, theirs, nil
}

// warm makes the server reach its working size and finds what a request costs.
func (c *contender) warm(ctx context.Context, n int) error {
	if _, err := c.measure(ctx, n); err != nil {
		return err
	}
	got, err := c.measure(ctx, 2*n)
	c.perReq = max(20*time.Microsecond, time.Duration(got.cpu*float64(time.Millisecond)))
	return err
}

// measure does n requests and returns their cost.
func (c *contender) measure(ctx context.Context, n int) (sample, error) {
	c.client.bodies = c.bodies(n)
	var took time.Duration
	var latencies []float64
	used, err := c.used(ctx, func() (err error) {
		took, latencies, err = c.client.run(ctx, n)
		return err
	})
	if err != nil {
		return sample{}, err
	}
	return sample{
		cpu:    used.cpu.Seconds() * 1000 / float64(n),
		rps:    float64(n) / took.Seconds(),
		p50:    Median(latencies),
		p99:    Quantile(latencies, 0.99),
		allocs: used.allocs / float64(n),
	}, nil
}

func cpuOf(s sample) float64    { return s.cpu }
func rpsOf(s sample) float64    { return s.rps }
func p50Of(s sample) float64    { return s.p50 }
func p99Of(s sample) float64    { return s.p99 }
func allocsOf(s sample) float64 { return s.allocs }

func medianOf(samples []sample, of func(sample) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	return Median(values)
}

// ratio is the median over rounds of the CPU ratio within the round.
func ratio(mine, theirs []sample) float64 {
	values := make([]float64, len(mine))
	for i := range mine {
		values[i] = mine[i].cpu / theirs[i].cpu
	}
	return Median(values)
}
