package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"pointsman/internal/lab"
)

// replay sends a trace through the product's own picker against simulated engines.
func replay(ctx context.Context, args []string, out, log io.Writer) error {
	o, err := parseReplay(args, out)
	if err != nil {
		return err
	}
	runner := &lab.Runner{Parallel: o.parallel, Progress: progressTo(log)}
	switch {
	case o.fit != "":
		return replayFit(ctx, o, out)
	case o.goals:
		return replayGoals(ctx, o, runner, out, log)
	}
	return replayStudy(ctx, o, runner, out, log)
}

// progressTo shows how far the runs are: on a terminal on one line.
func progressTo(log io.Writer) func(lab.Status) {
	form := "  run %d of %d, %s: %.0f %%\n"
	if isTerminal(log) {
		form = "\r\x1b[K  run %d of %d, %s: %.0f %%"
	}
	return func(s lab.Status) {
		_, _ = fmt.Fprintf(log, form, min(s.Done+1, s.Of), s.Of, s.Label, 100*s.Share)
		if isTerminal(log) && s.Done == s.Of {
			_, _ = fmt.Fprint(log, "\r\x1b[K")
		}
	}
}

// replayGoals prints the goals as the last line of out, and what of them is missed.
func replayGoals(ctx context.Context, o *replayOptions, runner *lab.Runner, out, log io.Writer) error {
	traces, err := o.traces()
	if err != nil {
		return err
	}
	var results []*lab.Result
	g := lab.GoalRun{
		Runner: runner, Base: o.setup, Floor: o.floor, Traces: traces,
		Log: func(r *lab.Result) { results = append(results, r) },
	}
	goals, err := g.Goals(ctx)
	if err != nil {
		return err
	}
	if err = lab.WriteTable(log, results); err != nil {
		return err
	}
	line, err := goals.JSON()
	if err != nil {
		return err
	}
	for _, missed := range goals.Missed() {
		_, _ = fmt.Fprintf(log, "goal missed: %s\n", missed)
	}
	_, err = fmt.Fprintf(out, "%s\n", line)
	return err
}

// replayStudy compares policies on one trace.
func replayStudy(ctx context.Context, o *replayOptions, runner *lab.Runner, out, log io.Writer) error {
	traces, err := o.traces()
	if err != nil {
		return err
	}
	if len(traces) != 1 {
		return errors.New("several traces are for --goals: give one")
	}
	study := lab.Study{
		Runner: runner, Trace: traces[0], Base: o.setup, Floor: o.floor, Policies: o.policies, Loads: o.loads, CachePercent: o.cachePercent,
		Within: secondsOf(o.sloSeconds), Share: o.sloShare, Capacity: o.capacity,
	}
	report, err := study.Run(ctx)
	if err != nil {
		return err
	}
	if o.html != "" {
		if err := writeTo(o.html, func(w io.Writer) error { return lab.WriteHTML(w, report) }); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(log, "report: %s\n", o.html)
	}
	if o.json == "-" {
		return json.NewEncoder(out).Encode(report)
	}
	if o.json != "" {
		if err := writeTo(o.json, func(w io.Writer) error { return json.NewEncoder(w).Encode(report) }); err != nil {
			return err
		}
	}
	return lab.WriteText(out, report)
}

func writeTo(path string, write func(io.Writer) error) error {
	f, err := os.Create(path) //nolint:gosec // whoever runs this names it
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// replayFit prints the engine constants that a worker's numbers show.
func replayFit(ctx context.Context, o *replayOptions, out io.Writer) error {
	fit, err := lab.FitFrom(ctx, o.fit, o.setup.Engine)
	if err != nil {
		return err
	}
	return fit.Write(out)
}
