package health

import (
	"context"

	"pointsman/fleet"
)

// ProbeOnce probes w and returns the result.
func ProbeOnce(ctx context.Context, p *Prober, w *fleet.Worker) string {
	return string(p.probe(ctx, p.cfg.Load(), w))
}
