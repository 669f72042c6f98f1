package lab

import (
	"errors"
	"fmt"
	"html/template"
	"io"
)

// section is one heading of a report with its plots.
type section struct {
	Title, Text string
	Plots       []template.HTML
}

// page is what the template shows.
type page struct {
	*Report
	Headline string
	Engine   string
	Sections []section
}

// WriteHTML writes a report that needs no network: styles and plots are in it.
func WriteHTML(out io.Writer, rep *Report) error {
	p := page{Report: rep, Headline: rep.headline(), Engine: rep.engine.String()}
	var errs [4]error
	var s section
	s, errs[0] = rep.latencySection()
	p.Sections = append(p.Sections, s)
	s, errs[1] = rep.cacheSection()
	p.Sections = append(p.Sections, s)
	s, errs[2] = rep.queueSection()
	p.Sections = append(p.Sections, s)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	t, err := template.New("report").Funcs(template.FuncMap{
		"sec": func(ms float64) string { return fmt.Sprintf("%.2f", ms/1e3) },
		"pct": func(v float64) string { return fmt.Sprintf("%.1f", 100*v) },
		"num": func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"sum": func(a, b int) int { return a + b },
	}).Parse(reportPage)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return t.Execute(out, p) //nolint:wrapcheck // the writer's own
}

func (rep *Report) latencySection() (section, error) {
	s := section{Title: "Latency against load", Text: "As clients see it: time to first token, and time per token after it. Lower is better."}
	for _, c := range []struct {
		title, y string
		of       func(*Result) float64
	}{
		{"Time to first token, p90", "seconds", func(r *Result) float64 { return r.TTFT.P90 / 1e3 }},
		{"Time to first token, p50", "seconds", func(r *Result) float64 { return r.TTFT.P50 / 1e3 }},
		{"Time per output token, p90", "milliseconds", func(r *Result) float64 { return r.TPOT.P90 }},
		{"Whole answer, p90", "seconds", func(r *Result) float64 { return r.E2E.P90 / 1e3 }},
	} {
		drawing, err := rep.curves(c.title, c.y, c.of)
		if err != nil {
			return s, err
		}
		s.Plots = append(s.Plots, drawing)
	}
	return s, nil
}

func (rep *Report) cacheSection() (section, error) {
	s := section{Title: "Caches and capacity", Text: "The most hits are not the best latency: what counts is how long the holder's queue is."}
	at := func(label string) *Result {
		for _, r := range rep.queues {
			if r.Policy == label {
				return r
			}
		}
		return &Result{}
	}
	hits, err := rep.bars("Prompt tokens found in caches"+rep.atLoad(), "%", 100*rep.Ceiling, "a cache without bounds", func(label string) float64 { return 100 * at(label).Hit })
	if err != nil {
		return s, err
	}
	s.Plots = append(s.Plots, hits)
	if len(rep.Capacity) == 0 {
		return s, nil
	}
	title := fmt.Sprintf("Rate up to which %.0f %% have a first token in %.3g s", 100*rep.SLOShare, rep.SLOSeconds)
	capacity, err := rep.bars(title, "requests per second", 0, "", func(label string) float64 { return rep.Capacity[label] })
	if err != nil {
		return s, err
	}
	s.Plots = append(s.Plots, capacity)
	return s, nil
}

func (rep *Report) queueSection() (section, error) {
	s := section{Title: "Queues over time" + rep.atLoad(), Text: "Requests that have no first token yet, a line for each worker. What a policy does well shows as short queues of equal length."}
	most := longest(rep.queues)
	for _, r := range rep.queues {
		if len(r.Samples) == 0 {
			continue
		}
		drawing, err := queuePlot(r, most)
		if err != nil {
			return s, err
		}
		s.Plots = append(s.Plots, drawing)
	}
	return s, nil
}

func (rep *Report) atLoad() string {
	if len(rep.queues) == 0 || rep.queues[0].Load == 0 {
		return ""
	}
	return fmt.Sprintf(" at %.0f %% load", rep.queues[0].Load)
}

// String says what the constants are.
func (e Engine) String() string {
	text := fmt.Sprintf("prefill %g tokens/ms, step %v + %v per decoder + %v per token of context, %d tokens and %d sequences a step", e.Rate, e.Step, e.PerDecoder, e.PerContext, e.ChunkTokens, e.MaxSeqs)
	if e.Doubling > 0 {
		text += fmt.Sprintf(", a prompt token costs double at position %.0f", e.Doubling)
	}
	return text
}

const reportPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Replay of {{.Trace}}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; color: #222; background: #fff }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2rem 0 .2rem }
p { margin: .3rem 0; color: #444 }
.plots { display: flex; flex-wrap: wrap; gap: 12px } .plots svg { border: 1px solid #ddd; border-radius: 6px; max-width: 100%; height: auto }
table { border-collapse: collapse; margin-top: .6rem; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 2px 9px; border-bottom: 1px solid #e4e4e4 } th:first-child, td:first-child { text-align: left }
.small { font-size: .85rem; color: #666 }
</style></head><body>
<h1>What each policy would do with {{.Trace}}</h1>
<p>{{.Headline}}.</p>
<p class="small">Engines: {{.Engine}}. Simulated in virtual time with seed {{.Seed}}; the picker, the index, the gate and the breaker are the product's own.</p>
{{range .Sections}}<h2>{{.Title}}</h2><p>{{.Text}}</p><div class="plots">{{range .Plots}}{{.}}
{{end}}</div>
{{end}}<h2>All runs</h2>
<table><tr><th>policy</th><th>load %</th><th>req/s</th><th>TTFT p50 s</th><th>p90</th><th>p99</th><th>TPOT p90 ms</th><th>answer p90 s</th><th>hits %</th><th>worst/mean</th><th>lost</th></tr>
{{range .Runs}}<tr><td>{{.Policy}}</td><td>{{printf "%.0f" .Load}}</td><td>{{printf "%.2f" .Rate}}</td><td>{{sec .TTFT.P50}}</td><td>{{sec .TTFT.P90}}</td><td>{{sec .TTFT.P99}}</td><td>{{num .TPOT.P90}}</td><td>{{sec .E2E.P90}}</td><td>{{pct .Hit}}</td><td>{{printf "%.2f" .Imbalance}}</td><td>{{sum .Refused .Failed}}</td></tr>
{{end}}</table>
</body></html>
`
