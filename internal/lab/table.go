package lab

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// WriteTable prints results, a line each. Times are in seconds, TPOT in milliseconds.
func WriteTable(out io.Writer, results []*Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if _, err := fmt.Fprintln(w, "policy\tworkers\tcache %\tload %\treq/s\tTTFT p50\tp90\tp99\tTPOT p90\te2e p90\thit %\tof ceiling %\tworst/mean\tlost\t"); err != nil {
		return err //nolint:wrapcheck // the writer's own
	}
	for _, r := range results {
		if err := r.line(w); err != nil {
			return err
		}
	}
	return w.Flush() //nolint:wrapcheck // the writer's own
}

func (r *Result) line(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.0f\t%.2f\t%d\t\n",
		r.Policy, r.Workers, orDash(r.Percent), orDash(r.Load), r.Rate,
		r.TTFT.P50/1e3, r.TTFT.P90/1e3, r.TTFT.P99/1e3, r.TPOT.P90, r.E2E.P90/1e3,
		100*r.Hit, 100*r.OfCeiling(), r.Imbalance, r.Refused+r.Failed)
	return err //nolint:wrapcheck // the writer's own
}

// OfCeiling returns the share of the possible hits that were hit; 1 when none were
// possible.
func (r *Result) OfCeiling() float64 {
	if r.Ceiling == 0 {
		return 1
	}
	return r.Hit / r.Ceiling
}

func orDash(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", v)
}
