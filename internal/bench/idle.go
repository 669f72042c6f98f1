package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// idleConfig is what `bench idle` measures.
type idleConfig struct {
	epp     string
	workers int
	settle  time.Duration // until the EPP knows its fleet and has slowed down
	watch   time.Duration // for which an idle EPP is watched
	rounds  int
	busy    time.Duration // CPU time that a round should take
}

// idleResult is the one JSON object. Shares are of one core, of the time watched;
// times per token are of the EPP's process.
type idleResult struct {
	Workers   int     `json:"workers"`
	Idle      float64 `json:"idle_core_percent"`         // each worker with a forwarder that reports
	Scraped   float64 `json:"idle_core_percent_scraped"` // no worker with one: engines are asked
	None      float64 `json:"cpu_us_per_token_none"`     // response_body_mode NONE
	Duplex    float64 `json:"cpu_us_per_token_duplex"`   // FULL_DUPLEX_STREAMED
	NoneCPU   float64 `json:"cpu_us_per_request_none"`   // of a whole response, its report included
	DuplexCPU float64 `json:"cpu_us_per_request_duplex"`
}

// Idle measures what a running EPP costs when nothing happens in a large fleet, health
// probes, load reports and the subscriptions to KV events included, and what a token of a response costs it: in its
// way (FULL_DUPLEX_STREAMED) and out of it (NONE, where the forwarders tell of ends).
func Idle(ctx context.Context, args []string, out, log io.Writer) error {
	c := idleConfig{}
	set := flag.NewFlagSet("bench idle", flag.ContinueOnError)
	set.SetOutput(log)
	set.StringVar(&c.epp, "epp", filepath.Join("bin", "epp"), "the EPP binary")
	set.IntVar(&c.workers, "workers", 200, "size of the fleet")
	set.DurationVar(&c.settle, "settle", 18*time.Second, "time before the idle EPP is watched")
	set.DurationVar(&c.watch, "watch", 20*time.Second, "for which it is watched")
	set.IntVar(&c.rounds, "rounds", 5, "rounds per response mode; the median counts")
	set.DurationVar(&c.busy, "busy", 600*time.Millisecond, "CPU time that each round should take")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if c.workers < 1 || c.workers > 10_000 || c.watch < time.Second || c.rounds < 1 {
		return errors.New("bench idle: give 1 to 10000 workers, at least a second to watch and a round")
	}
	result, err := c.measure(ctx, &sharedWriter{w: log})
	if err != nil {
		return fmt.Errorf("bench idle: %w", err)
	}
	return PrintJSON(out, result)
}

func (c *idleConfig) measure(ctx context.Context, log io.Writer) (*idleResult, error) {
	result := &idleResult{Workers: c.workers}
	err := c.with(ctx, true, log, func(f *idleFleet, s *process) (err error) {
		if err = s.count(ctx, "pointsman_load_report_sources", c.workers); err != nil {
			return err
		}
		if result.Idle, err = c.idle(ctx, s); err != nil {
			return err
		}
		fmt.Fprintf(log, "idle, %d workers with forwarders: %.2f %% of a core\n", c.workers, result.Idle)
		if result.None, result.NoneCPU, err = c.perToken(ctx, s, f); err != nil {
			return err
		}
		fmt.Fprintf(log, "NONE: %.2f µs per token, %.0f per request\n", result.None, result.NoneCPU)
		if result.Duplex, result.DuplexCPU, err = c.perToken(ctx, s, nil); err != nil {
			return err
		}
		fmt.Fprintf(log, "FULL_DUPLEX_STREAMED: %.2f µs per token, %.0f per request\n", result.Duplex, result.DuplexCPU)
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = c.with(ctx, false, log, func(_ *idleFleet, s *process) (err error) {
		result.Scraped, err = c.idle(ctx, s)
		fmt.Fprintf(log, "idle, %d workers without forwarders: %.2f %% of a core\n", c.workers, result.Scraped)
		return err
	})
	return result, err
}

// with runs f on a fleet and an EPP before it.
func (c *idleConfig) with(ctx context.Context, reporting bool, log io.Writer, f func(*idleFleet, *process) error) error {
	dir, err := os.MkdirTemp("", "pointsman-idle-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	fl, err := startIdleFleet(ctx, c.workers, reporting)
	if err != nil {
		return err
	}
	defer fl.close()
	file := filepath.Join(dir, "fleet.yaml")
	if err = os.WriteFile(file, []byte(fl.file()), 0o600); err != nil {
		return err
	}
	s, err := startEPPOn(ctx, c.epp, file, log, "--health-probe=true", "--kv-event-transport", "zmq", "--tokenizer", "none", "--load-reports", "http", "--destination-port", strconv.Itoa(fl.reportPort))
	if err != nil {
		return err
	}
	defer s.stop()
	return f(fl, s)
}

// count makes sure that a series of the EPP is n.
func (s *process) count(ctx context.Context, series string, n int) error {
	got, err := s.metric(ctx, series)
	if err == nil && got != float64(n) {
		err = fmt.Errorf("%s is %g, of %d workers", series, got, n)
	}
	return err
}

// idle returns the share of a core, in percent, that the EPP takes by itself.
func (c *idleConfig) idle(ctx context.Context, s *process) (float64, error) {
	if err := sleep(ctx, c.settle); err != nil {
		return 0, err
	}
	if err := s.count(ctx, `pointsman_kvevents_connected{transport="zmq"}`, c.workers); err != nil {
		return 0, err
	}
	began := time.Now()
	before, err := ProcessCPUTime(s.pid)
	if err != nil {
		return 0, err
	}
	if err = sleep(ctx, c.watch); err != nil {
		return 0, err
	}
	after, err := ProcessCPUTime(s.pid)
	return Round(100*(after-before).Seconds()/time.Since(began).Seconds(), 2), err
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// perToken returns the microseconds that a token of a response costs the EPP, by
// responses of one and of many, and those of a request with many. With a fleet the
// gateway shows no response bodies, and forwarders report their ends.
func (c *idleConfig) perToken(ctx context.Context, s *process, f *idleFleet) (token, request float64, err error) {
	var pair [2]*contender
	for i, tokens := range [...]int{1, responseChunks + 1} {
		client, err := dialExtProc(s.addr, tokens)
		if err != nil {
			return 0, 0, err
		}
		defer client.close()
		bodies := extProcBodies(smallPrompt)
		if f != nil {
			client.hide(bodies, func(route map[string]string) error { return f.answered(route, tokens) })
		}
		pair[i] = &contender{process: s, client: client, bodies: sameBodies(bodies)}
		if err = pair[i].warm(ctx, leastRequests); err != nil {
			return 0, 0, err
		}
	}
	var samples [2][]sample
	for range c.rounds {
		for i, p := range pair {
			got, err := p.measure(ctx, min(mostRequests, max(leastRequests, int(c.busy/p.perReq))))
			if err != nil {
				return 0, 0, err
			}
			samples[i] = append(samples[i], got)
		}
	}
	few, many := 1000*medianOf(samples[0], cpuOf), 1000*medianOf(samples[1], cpuOf)
	return Round((many-few)/responseChunks, 2) + 0, Round(many, 1), nil
}

// hide makes the client a gateway with response_body_mode NONE: its streams end with
// the response's head, after which ended is told where the request went.
func (c *extProcClient) hide(bodies []extProcBody, ended func(route map[string]string) error) {
	for i := range bodies {
		bodies[i].head.ProtocolConfig = &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode: extprocfilterv3.ProcessingMode_NONE,
		}
	}
	c.ended, c.response = ended, c.response[:1]
}
