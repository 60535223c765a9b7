package main

import (
	"fmt"
	"math"
	"strings"
)

// plot is a picture of one value over the time of a scenario.
type plot struct {
	title string
	value func(before, now sample) float64
}

// The metrics of Pullpass itself; those of its clients are in k6's page.
var plots = []plot{
	{"exchanges a second", func(a, b sample) float64 { return (b.exchanges - a.exchanges) / (b.at - a.at).Seconds() }},
	{"CPU, cores", func(a, b sample) float64 { return (b.cpu - a.cpu) / (b.at - a.at).Seconds() }},
	{"resident memory, MiB", func(_, b sample) float64 { return b.resident / (1 << 20) }},
	{"heap, MiB", func(_, b sample) float64 { return b.heap / (1 << 20) }},
}

const (
	plotWidth, plotHeight = 420, 150
	marginLeft, marginTop = 50, 24
	marginBottom          = 20
)

// draw returns the plot as SVG.
func (p plot) draw(samples []sample) string {
	end := samples[len(samples)-1].at.Seconds()
	highest := 0.0
	values := make([]float64, 0, len(samples)-1)
	for i := 1; i < len(samples); i++ {
		values = append(values, p.value(samples[i-1], samples[i]))
		highest = math.Max(highest, values[i-1])
	}
	top := ceiling(highest)
	var line strings.Builder
	for i, v := range values {
		x := marginLeft + (plotWidth-marginLeft)*samples[i+1].at.Seconds()/end
		y := plotHeight - marginBottom - (plotHeight-marginBottom-marginTop)*v/top
		fmt.Fprintf(&line, "%.1f,%.1f ", x, y)
	}
	const floor, left = plotHeight - marginBottom, marginLeft - 6
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg viewBox="0 0 %d %d" role="img" aria-label="%s">`, plotWidth, plotHeight, p.title)
	fmt.Fprintf(&svg, `<text x="%d" y="14">%s</text>`, marginLeft, p.title)
	for _, y := range []float64{0, 0.5, 1} {
		at := floor - (floor-marginTop)*y
		fmt.Fprintf(&svg, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="scale" x="%d" y="%.1f">%.4g</text>`,
			marginLeft, plotWidth, at, at, left, at+4, y*top)
	}
	fmt.Fprintf(&svg, `<text class="scale" x="%d" y="%d">%.0f s</text>`, plotWidth, plotHeight-4, end)
	fmt.Fprintf(&svg, `<polyline points="%s"/></svg>`, strings.TrimSpace(line.String()))
	return svg.String()
}

// ceiling is the least of 1, 2, 5, 10, 20, 50, … that is not below v.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, factor := range []float64{1, 2, 5} {
		if v <= factor*unit {
			return factor * unit
		}
	}
	return 10 * unit
}
