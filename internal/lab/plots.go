package lab

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes of plots, in points.
const (
	plotWidth  = 420 * vg.Length(1)
	plotHeight = 270 * vg.Length(1)
)

// palette is Okabe and Ito's: told apart by the colour-blind, too.
func palette(i int) color.Color {
	colors := [...]color.RGBA{
		{0, 114, 178, 255},
		{213, 94, 0, 255},
		{0, 158, 115, 255},
		{204, 121, 167, 255},
		{230, 159, 0, 255},
		{86, 180, 233, 255},
		{90, 90, 90, 255},
		{150, 110, 40, 255},
	}
	return colors[i%len(colors)]
}

// glyph is a policy's mark: lines that cross are told apart without colour.
func glyph(i int) draw.GlyphDrawer {
	shapes := [...]draw.GlyphDrawer{
		draw.CircleGlyph{},
		draw.SquareGlyph{},
		draw.TriangleGlyph{},
		draw.CrossGlyph{},
		draw.RingGlyph{},
		draw.BoxGlyph{},
		draw.PyramidGlyph{},
		draw.PlusGlyph{},
	}
	return shapes[i%len(shapes)]
}

// newPlot returns an empty plot with titles and a grid.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = 6
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = 2
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{225}, color.Gray{240}
	p.Add(grid)
	return p
}

// svg draws p.
func svg(p *plot.Plot, width, height vg.Length) (template.HTML, error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("plot: %w", err)
	}
	at := bytes.Index(b.Bytes(), []byte("<svg"))
	if at < 0 {
		return "", fmt.Errorf("plot %q: no drawing came out", p.Title.Text)
	}
	return template.HTML(b.Bytes()[at:]), nil //nolint:gosec // of our own numbers and of labels that the plot escapes
}

// curves draws a value of each run against the load, a line for each policy.
func (rep *Report) curves(title, y string, of func(*Result) float64) (template.HTML, error) {
	p := newPlot(title, rep.loadAxis(), y)
	lo, hi := math.Inf(1), 0.0
	for i, label := range rep.order {
		var points plotter.XYs
		for _, r := range rep.Runs {
			if v := of(r); r.Policy == label && v > 0 {
				points = append(points, plotter.XY{X: rep.loadOf(r), Y: v})
				lo, hi = min(lo, v), max(hi, v)
			}
		}
		if len(points) == 0 {
			continue
		}
		slices.SortFunc(points, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return "", fmt.Errorf("plot %q: %w", title, err)
		}
		line.Color, line.Width = palette(i), 1.5
		marks.Color, marks.Shape, marks.Radius = palette(i), glyph(i), 3
		p.Add(line, marks)
		p.Legend.Add(label, line, marks)
	}
	if hi/lo > 8 {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
		p.Y.Min, p.Y.Max = lo/1.2, hi*1.2
	} else {
		p.Y.Min = 0
		p.Y.Max *= 1.15
	}
	margin := (p.X.Max - p.X.Min) * 0.03
	p.X.Min, p.X.Max = p.X.Min-margin, p.X.Max+margin // no mark is cut
	return svg(p, plotWidth, plotHeight)
}

// decades marks a logarithmic axis at 1, 2 and 5 of each decade.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(lo, hi float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(lo)); math.Pow(10, e) <= hi; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= lo && v <= hi {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 3, 64)})
			}
		}
	}
	return ticks
}

func (rep *Report) loadAxis() string {
	if rep.Full > 0 {
		return "load, % of what the fleet serves when flooded"
	}
	return "requests per second"
}

func (rep *Report) loadOf(r *Result) float64 {
	if rep.Full > 0 {
		return r.Load
	}
	return r.Rate
}

// bars draws a value for each policy, and a line that none can pass when limit is
// not 0.
func (rep *Report) bars(title, y string, limit float64, limitLabel string, of func(label string) float64) (template.HTML, error) {
	p := newPlot(title, "", y)
	for i, label := range rep.order {
		bar, err := plotter.NewBarChart(plotter.Values{of(label)}, 26)
		if err != nil {
			return "", fmt.Errorf("plot %q: %w", title, err)
		}
		bar.XMin, bar.Color, bar.LineStyle.Width = float64(i), palette(i), 0
		p.Add(bar)
	}
	p.NominalX(rep.order...)
	p.X.Min, p.X.Max = -0.5, float64(len(rep.order))-0.5
	if len(rep.order) > 4 {
		p.X.Tick.Label.Rotation = 0.45
		p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YTop
	}
	if limit > 0 {
		line, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: limit}, {X: float64(len(rep.order)) - 0.5, Y: limit}})
		if err != nil {
			return "", fmt.Errorf("plot %q: %w", title, err)
		}
		line.Dashes = []vg.Length{4, 3}
		p.Add(line)
		p.Legend.Add(limitLabel, line)
	}
	p.Y.Min = 0
	p.Y.Max *= 1.2
	return svg(p, plotWidth, plotHeight)
}

// queuePlot draws how many requests wait for a first token on each worker over the
// run's time.
func queuePlot(r *Result, most float64) (template.HTML, error) {
	p := newPlot(r.Policy, "minutes", "waiting requests")
	for w := range r.Workers {
		points := make(plotter.XYs, len(r.Samples))
		for i, s := range r.Samples {
			points[i] = plotter.XY{X: s.At.Minutes(), Y: float64(s.Queues[w])}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return "", fmt.Errorf("queues of %s: %w", r.Policy, err)
		}
		line.Color, line.Width = palette(w), 0.6
		p.Add(line)
	}
	p.Y.Min, p.Y.Max = 0, most*1.05+1
	p.X.Tick.Marker, p.Y.Tick.Marker = round{}, round{}
	return svg(p, plotWidth, plotHeight*0.7)
}

// round marks an axis at some five round numbers.
type round struct{}

// Ticks implements plot.Ticker.
func (round) Ticks(lo, hi float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((hi-lo)/2)))
	for (hi-lo)/step > 6 {
		step *= 2
	}
	var ticks []plot.Tick
	for v := math.Ceil(lo/step) * step; v <= hi; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 4, 64)})
	}
	return ticks
}

// longest returns the longest queue of the runs.
func longest(runs []*Result) (most float64) {
	for _, r := range runs {
		for _, s := range r.Samples {
			for _, n := range s.Queues {
				most = max(most, float64(n))
			}
		}
	}
	return most
}
