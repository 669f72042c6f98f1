package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pointsman/fleet"
	"pointsman/forward"
	httptransport "pointsman/plugins/transport/http"
	natstransport "pointsman/plugins/transport/nats"
)

// natsResult is the one JSON object. The ratios are requests per second over
// NATS to those over HTTP; the times are CPU of this process, which is the
// transport's alone, per unary request.
type natsResult struct {
	Unary   float64 `json:"unary_ratio"`
	SSE     float64 `json:"sse_ratio"`
	CPUHTTP float64 `json:"cpu_us_http"`
	CPUNATS float64 `json:"cpu_us_nats"`
}

const (
	natsStreams = 32 // requests at a time
	natsEvents  = 50 // of a streamed answer
)

// natsChild tells the parent where the measured worker is.
type natsChild struct {
	Worker string `json:"worker"` // host:port
	Broker string `json:"broker"`
}

// NATS measures requests over NATS beside requests over HTTP: to the same
// worker, which answers at once, through the forwarder's two transports, in
// alternating rounds. Worker and broker share one other process.
func NATS(ctx context.Context, args []string, out, log io.Writer) error {
	if len(args) > 0 && args[0] == childFlag {
		return natsServe(ctx, out)
	}
	set := flag.NewFlagSet("bench nats", flag.ContinueOnError)
	set.SetOutput(log)
	rounds := set.Int("rounds", 5, "alternating rounds; the median counts")
	length := set.Duration("round", 400*time.Millisecond, "duration of each round")
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *rounds < 1 || *length < 50*time.Millisecond {
		return errors.New("bench nats: give at least one round of 50ms")
	}
	result, err := measureNATS(ctx, childArgs(args), *rounds, *length, log)
	if err != nil {
		return fmt.Errorf("bench nats: %w", err)
	}
	return PrintJSON(out, result)
}

func measureNATS(ctx context.Context, self []string, rounds int, length time.Duration, log io.Writer) (*natsResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	child, stop, err := startNATSChild(ctx, self, log)
	if err != nil {
		return nil, err
	}
	defer stop()
	over, join, err := natsTransports(ctx, child)
	if err != nil {
		return nil, err
	}
	defer join()
	defer cancel()
	worker := &fleet.Worker{ID: child.Worker, URL: "http://" + child.Worker, DPRank: -1}
	if _, err := fmt.Sscanf(child.Worker, "127.0.0.1:%d", &worker.Port); err != nil {
		return nil, fmt.Errorf("worker %q: %w", child.Worker, err)
	}
	worker.Host = "127.0.0.1"
	result := &natsResult{}
	for _, stream := range []bool{false, true} {
		rates, costs, err := natsRounds(ctx, over, worker, stream, rounds, length)
		if err != nil {
			return nil, err
		}
		ratio := Round(Median(rates[1])/Median(rates[0]), 3)
		fmt.Fprintf(log, "stream %v: %.0f requests/s and %.1f µs CPU over HTTP, %.0f and %.1f over NATS\n",
			stream, Median(rates[0]), Median(costs[0]), Median(rates[1]), Median(costs[1]))
		if stream {
			result.SSE = ratio
			continue
		}
		result.Unary, result.CPUHTTP, result.CPUNATS = ratio, Round(Median(costs[0]), 1), Round(Median(costs[1]), 1)
	}
	return result, nil
}

// natsTransports makes and runs the two transports, HTTP first; join waits for
// their end after ctx is done.
func natsTransports(ctx context.Context, child natsChild) (over [2]forward.Transport, join func(), err error) {
	byHTTP, err := httptransport.New(httptransport.DefaultConfig())
	if err != nil {
		return over, nil, err
	}
	cfg := natstransport.DefaultConfig()
	cfg.Broker.Server = child.Broker
	byNATS, err := natstransport.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return over, nil, err
	}
	var parts sync.WaitGroup
	parts.Go(func() { _ = byHTTP.Run(ctx) })
	parts.Go(func() { _ = byNATS.Run(ctx) })
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !byNATS.Connected() {
		select {
		case <-ctx.Done():
			return over, nil, ctx.Err()
		case <-tick.C:
		}
	}
	return [2]forward.Transport{byHTTP, byNATS}, parts.Wait, nil
}

// natsRounds lets the transports take turns and returns, of each, the rates and
// the CPU times in microseconds per request.
func natsRounds(ctx context.Context, over [2]forward.Transport, w *fleet.Worker, stream bool, rounds int, length time.Duration) (rates, costs [2][]float64, err error) {
	for round := range rounds + 1 {
		for i := range over {
			which := (round + i) % 2
			rate, cost, failed := natsRound(ctx, over[which], w, stream, length)
			if failed != nil {
				return rates, costs, failed
			}
			if round > 0 { // the first warms up
				rates[which] = append(rates[which], rate)
				costs[which] = append(costs[which], cost)
			}
		}
	}
	return rates, costs, nil
}

// natsRound sends requests for the given time.
func natsRound(ctx context.Context, over forward.Transport, w *fleet.Worker, stream bool, length time.Duration) (rate, cost float64, err error) {
	var n atomic.Int64
	var failed atomic.Pointer[error]
	before, err := CPUTime()
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	var senders sync.WaitGroup
	for range natsStreams {
		senders.Go(func() {
			for time.Since(begun) < length && failed.Load() == nil {
				if cause := natsRequest(ctx, over, w, stream); cause != nil {
					failed.Store(&cause)
				}
				n.Add(1)
			}
		})
	}
	senders.Wait()
	took := time.Since(begun)
	if cause := failed.Load(); cause != nil {
		return 0, 0, *cause
	}
	after, err := CPUTime()
	if err != nil {
		return 0, 0, err
	}
	done := float64(n.Load())
	return done / took.Seconds(), float64((after - before).Microseconds()) / done, nil
}

// natsRequest sends one request and checks that all of its answer comes.
func natsRequest(ctx context.Context, over forward.Transport, w *fleet.Worker, stream bool) error {
	body, want := natsUnaryBody, len(natsAnswer)
	if stream {
		body, want = natsStreamBody, natsEvents*len(natsEvent)+len(natsDone)
	}
	resp, err := over.Do(ctx, w, &forward.Request{
		Method: http.MethodPost, Target: "/v1/chat/completions", Body: []byte(body),
		Header: http.Header{"Content-Type": {"application/json"}},
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.Status != http.StatusOK || int(n) != want) {
		err = fmt.Errorf("status %d and %d bytes, want 200 and %d", resp.Status, n, want)
	}
	return err
}

// startNATSChild runs this program as broker and worker.
func startNATSChild(ctx context.Context, self []string, log io.Writer) (child natsChild, stop func(), err error) {
	p, err := startSelf(ctx, self, log, &child)
	if err != nil {
		return child, nil, err
	}
	return child, p.stop, nil
}
