package main

import (
	"context"
	"time"

	"pointsman/config"
	"pointsman/extproc"
	"pointsman/internal/assemble"
	"pointsman/internal/ops"
	"pointsman/internal/run"
)

// serve joins the common parts with the ext-proc door. The door ends with ctx,
// the parts only after it: streams that still run want a fleet and a picker.
func serve(ctx context.Context, core *assemble.Core) error {
	cfg := core.Config
	keys, err := core.TicketKeys()
	if err != nil {
		return err
	}
	salts, err := core.Salts()
	if err != nil {
		return err
	}
	secured, err := core.ListenTLS("ext-proc", "h2")
	if err != nil {
		return err
	}
	door, err := extproc.New(cfg.ExtProc, extproc.Deps{
		Picker:   core.Picker,
		Preparer: core.Preparer(),
		Gate:     core.Gate,
		Store:    core.Store,
		Log:      core.Log,

		Objectives: core.Objectives(),

		Audit:    core.Audit,
		Keys:     keys,
		TLS:      secured,
		Salts:    salts,
		Ready:    func() bool { return core.Synced() == nil && core.Warm(time.Now()) == nil }, //nolint:contextcheck // only logs
		PickerID: core.PickerID(),
		Mine:     core.Mine(),
	})
	if err != nil {
		return err
	}
	core.Live.OnReload("ext-proc", func(next *config.Config) error { return door.SetConfig(next.ExtProc) })
	core.Tell(door)
	if err = door.Register(core.Registry); err != nil {
		return err
	}
	ports, err := run.Listen(ctx, cfg.Host, cfg.GRPCPort, cfg.GRPCHealthPort, cfg.MetricsPort)
	if err != nil {
		return err
	}
	parts := run.New(context.WithoutCancel(ctx))
	core.Start(parts)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(parts.Context(), stop)() //nolint:contextcheck // a part that fails ends the door
	parts.Go("ext-proc", func(context.Context) error {
		defer parts.Stop()
		return door.Serve(ctx, ports[0], ports[1])
	})
	if ports[2] != nil {
		parts.Go("metrics", run.HTTP(ports[2], ops.Handler(ops.Deps{
			Live: core.Live, Registry: core.Registry, Store: core.Store, Picker: core.Picker, Ready: core.Ready(ctx),
			CacheBlocks: core.CacheBlocks, Peers: core.Peers(ctx), Gate: core.Gate, Drain: stop,
		})))
	}
	return parts.Wait()
}
