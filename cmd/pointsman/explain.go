package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"pointsman/picker"
)

const explainText = `explain prints the latest picks of an EPP or a forwarder, the newest last: who was
a candidate, what each would have cost, and why one was chosen. Amounts are in
tokens, costs in tokens or in what the policy says; the lowest cost wins.`

// explainFilter selects records.
type explainFilter struct {
	last           int
	request, model string
}

func explain(ctx context.Context, args []string, out, _ io.Writer) error {
	var url, token string
	var f explainFilter
	fs := newFlags("explain", explainText, out)
	fs.StringVar(&url, "url", "http://127.0.0.1:9090", "metrics address of the EPP or forwarder (its --metrics-port)")
	fs.StringVar(&token, "admin-token", "", "its --admin-token, needed from another machine")
	fs.IntVarP(&f.last, "last", "n", 5, "how many picks; 0 prints all that are kept")
	fs.StringVar(&f.request, "request", "", "only picks for this request id")
	fs.StringVar(&f.model, "model", "", "only picks for this model")
	if err := parseFlags(fs, args); err != nil {
		return err
	}
	var answer struct {
		Picks []picker.Record `json:"picks"`
	}
	if err := newAsker(token).getJSON(ctx, url, "/debug/picks", &answer); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	picks := f.apply(answer.Picks)
	if len(picks) == 0 {
		_, err := fmt.Fprintf(out, "no such pick among the %d that %s keeps (its --explain-ring says how many that can be)\n", len(answer.Picks), url)
		return err
	}
	return printPicks(out, picks)
}

// apply returns the records that f selects, the oldest first.
func (f explainFilter) apply(newestFirst []picker.Record) []picker.Record {
	var picks []picker.Record
	for _, r := range newestFirst {
		if f.request != "" && r.RequestID != f.request || f.model != "" && r.Model != f.model {
			continue
		}
		if picks = append(picks, r); len(picks) == f.last {
			break
		}
	}
	slices.Reverse(picks)
	return picks
}

func printPicks(out io.Writer, picks []picker.Record) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i := range picks {
		writePick(table, &picks[i])
	}
	return table.Flush()
}

// writePick writes one record: a sentence, and a row per candidate in order of
// cost, those that were excluded last.
func writePick(w io.Writer, r *picker.Record) {
	fmt.Fprintf(w, "%s  %s  model %s, %s\n", r.Time.Format("15:04:05.000"), orDash(r.RequestID), orDash(r.Model), sentence(r))
	rows := slices.Clone(r.Candidates)
	slices.SortStableFunc(rows, compareCandidates)
	unit := ""
	if r.CostUnit != "" && r.CostUnit != "tokens" {
		unit = ", " + r.CostUnit
	}
	fmt.Fprintf(w, "\tworker\tcost%s\thit\tmiss\tactive\trecent\tin flight\tindex\tshares of the cost\t\n", unit)
	for i := range rows {
		c := &rows[i]
		name := c.Worker
		if c.Rank >= 0 {
			name = fmt.Sprintf("%s#dp%d", name, c.Rank)
		}
		if c.Chosen {
			name = "> " + name
		}
		if c.Excluded != "" {
			fmt.Fprintf(w, "\t%s\t-\t\t\t\t\t\t%s\t%s\t\n", name, c.Mode, c.Excluded)
			continue
		}
		fmt.Fprintf(w, "\t%s\t%.5g\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%s\t%s\t\n",
			name, c.Cost, c.Hit, c.Miss, c.Active, c.Recent, c.Requests, c.Mode, shares(c.Terms))
	}
	fmt.Fprintln(w)
}

// sentence says what came of a pick.
func sentence(r *picker.Record) string {
	if r.Error != "" {
		return "refused: " + r.Error
	}
	how := "exact tokens"
	switch {
	case r.ByLoad:
		how = "by load alone"
	case r.Approx:
		how = "approximated"
	}
	text := fmt.Sprintf("%s chose %s: %d of %d prompt tokens believed there (%s, reason %s)",
		r.Policy, orDash(r.Chosen), r.HitTokens, r.PromptTokens, how, orDash(r.Reason))
	if r.AllOpen {
		text += "; every circuit was open"
	}
	if sh := r.Shadow; sh != nil && sh.Chosen != "" {
		text += fmt.Sprintf("; %s would have taken %s (%+.0f ms, %+.0f tokens)", sh.Policy, sh.Chosen, sh.MS, sh.HitTokens)
	}
	return text
}

func compareCandidates(a, b picker.Candidate) int {
	switch {
	case (a.Excluded == "") != (b.Excluded == ""):
		if a.Excluded == "" {
			return -1
		}
		return 1
	case a.Cost < b.Cost:
		return -1
	case a.Cost > b.Cost:
		return 1
	}
	return 0
}

func shares(terms []picker.Term) string {
	parts := make([]string, 0, len(terms))
	for _, t := range terms {
		if t.Cost != 0 || len(terms) < 4 {
			parts = append(parts, fmt.Sprintf("%s %.4g", t.Scorer, t.Cost))
		}
	}
	return strings.Join(parts, " + ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
