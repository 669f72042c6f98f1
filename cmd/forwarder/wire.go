package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"pointsman/config"
	"pointsman/forward"
	"pointsman/internal/assemble"
	"pointsman/internal/ops"
	"pointsman/internal/run"
	"pointsman/plugins"
)

// serve joins the common parts with the HTTP door. The door ends with ctx, the
// parts only after it: streams that still run want a fleet and a picker.
func serve(ctx context.Context, core *assemble.Core) error {
	cfg := core.Config
	transports, runs, err := core.Transports()
	if err != nil {
		return err
	}
	tickets, err := core.Tickets()
	if err != nil {
		return err
	}
	salts, err := core.Salts()
	if err != nil {
		return err
	}
	secured, err := core.ListenTLS("clients", "h2", "http/1.1")
	if err != nil {
		return err
	}
	if cfg.Exposed() {
		core.Log.LogAttrs(ctx, slog.LevelWarn, "routing headers are believed of whoever reaches this port; see --direct-trust",
			slog.String("host", cfg.Host), slog.Int("port", cfg.Port))
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var door *forward.Server
	operator := ops.Handler(ops.Deps{
		Requests: func(w http.ResponseWriter, r *http.Request) { door.ServeRequest(w, r) },
		Live:     core.Live, Registry: core.Registry, Store: core.Store, Picker: core.Picker, Ready: core.Ready(ctx),
		CacheBlocks: core.CacheBlocks, Gate: core.Gate, Drain: stop,
	})
	pages := routes(operator)
	if path, stream, ok := core.ReportRoute(ctx); ok {
		pages[path] = stream
	}
	door, err = forward.New(cfg.Forward, forward.Deps{
		Picker:     core.Picker,
		Store:      core.Store,
		Preparer:   core.Preparer,
		Gate:       core.Gate,
		Transports: transports,
		Connectors: plugins.Connectors,
		Ready:      core.Reachable,
		Audit:      core.Audit,
		Tickets:    tickets,
		Salts:      salts,
		TLS:        secured,
		Reports:    core.Tally(),
		PickerID:   core.PickerID(),
		Routes:     pages,
		Log:        core.Log,
	})
	if err != nil {
		return err
	}
	valve := forward.NewValve(cfg.MaxTotalInflight)
	if err = errors.Join(door.Register(core.Registry), valve.Register(core.Registry)); err != nil {
		return err
	}
	core.Live.OnReload("forward", func(next *config.Config) error { return door.SetConfig(next.Forward) })
	ports, err := run.Listen(ctx, cfg.Host, cfg.Port, cfg.MetricsPort)
	if err != nil {
		return err
	}
	parts := run.New(context.WithoutCancel(ctx))
	core.Start(parts)
	if cfg.Forward.Mode == forward.Auto {
		core.Preparer() // every request will be scored: be warm for the first
		parts.Go("canaries", door.Canaries)
	}
	for name, run := range runs {
		parts.Go(name, run)
	}
	defer context.AfterFunc(parts.Context(), stop)() //nolint:contextcheck // a part that fails ends the door
	parts.Go("forward", func(context.Context) error {
		defer parts.Stop()
		return door.Serve(ctx, valve.Listen(ports[0]))
	})
	if ports[1] != nil {
		parts.Go("metrics", run.HTTP(ports[1], operator))
	}
	return parts.Wait()
}

// routes are the operator's pages on the client port; Infera's server has
// /metrics there too. The guard of [ops.Handler] holds here as well.
func routes(operator http.Handler) map[string]http.Handler {
	out := map[string]http.Handler{}
	for _, path := range []string{"/metrics", "/config/effective", "/debug/picks", "/debug/pick", ops.DrainPath, ops.CacheViewPath, forward.RequestsPath} {
		out[path] = operator
	}
	return out
}
