package lab

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"
)

// Sizes in pixels. A report is two plots, one above the other, with the same time axis.
const (
	chartWidth  = 960
	chartHeight = 550
	plotLeft    = 80
	plotWidth   = 850
	countTop    = 106
	countHeight = 240
	waitTop     = 382
	waitHeight  = 120
)

// Colours that tell policies apart for most people who see fewer of them, too.
var colours = []string{"#0072b2", "#d55e00", "#9b4f96", "#b8860b", "#56b4e9"}

const (
	arrivalColour = "#777777"
	optimumColour = "#009e73"
)

// WriteSVG draws reports, one below the other, over the time since the first arrival: how many messages had arrived,
// how many were done, and the wait of the messages that started at a time. The time axis ends when the slowest policy
// is done, or after two and a half times the time of the optimum.
func WriteSVG(w io.Writer, reports ...Report) error {
	var b strings.Builder
	height := max(1, len(reports)) * chartHeight
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="system-ui, sans-serif" font-size="12" fill="#222222">`+"\n", chartWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", chartWidth, height)
	for i, r := range reports {
		fmt.Fprintf(&b, `<g transform="translate(0 %d)">`+"\n", i*chartHeight)
		r.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Report) draw(b *strings.Builder) {
	text(b, 20, 28, `font-size="16" font-weight="bold"`, r.Scenario.Name)
	text(b, 20, 48, "", r.Scenario.About)
	from, to := r.shown()
	var most int64
	for _, res := range r.Results {
		for _, w := range res.waits {
			if w.at <= to {
				most = max(most, w.wait)
			}
		}
	}
	counts := plot{b, from, to, countTop, countHeight, float64(r.messages())}
	waits := plot{b, from, to, waitTop, waitHeight, float64(most)}
	counts.axes("messages", counting, false)
	waits.axes("longest wait of the messages that start then", timing, true)

	var lines []line
	if len(r.Results) > 0 {
		lines = append(lines, line{"arrived", arrivalColour, "2 3", r.Results[0].arrivals, nil})
	}
	for i, res := range r.Results {
		name := res.Policy
		if res.GaveUp > 0 {
			name += " (given up)"
		}
		l := line{name, colours[i%len(colours)], "", res.ends, res.waits}
		if i == len(r.Results)-1 {
			l.colour, l.dashes = optimumColour, "7 4"
		}
		lines = append(lines, l)
	}
	x := plotLeft
	for _, l := range lines {
		fmt.Fprintf(b, `<path d="M%d 70h28" %s/>`+"\n", x, l.stroke())
		text(b, x+34, 74, "", l.name)
		x += 60 + 8*len(l.name)
	}
	// The first policy above the others, and the dashes of the optimum above it: they are often the same.
	slices.Reverse(lines[:max(0, len(lines)-1)])
	for _, l := range lines {
		counts.draw(l, cumulative(l.times))
		waits.draw(l, longest(l.waits))
	}
}

// shown is the time that is drawn, in ms since 1970.
func (r Report) shown() (from, to int64) {
	if len(r.Results) > 0 && len(r.Results[0].arrivals) > 0 {
		from = r.Results[0].arrivals[0]
	}
	to = from + 1
	for i, res := range r.Results {
		n := len(res.ends)
		if n == 0 {
			continue
		}
		end := res.ends[n-1]
		to = max(to, end)
		if optimum := i == len(r.Results)-1; optimum {
			to = min(to, from+(end-from)*5/2)
		}
	}
	return from, to
}

func (r Report) messages() (n int) {
	for _, res := range r.Results {
		n = max(n, res.Messages)
	}
	return n
}

// line is a policy, or the arrivals.
type line struct {
	name, colour, dashes string
	times                []int64
	waits                []waited
}

func (l line) stroke() string {
	s := fmt.Sprintf(`fill="none" stroke="%s" stroke-width="1.6"`, l.colour)
	if l.dashes != "" {
		s += fmt.Sprintf(` stroke-dasharray="%s"`, l.dashes)
	}
	return s
}

// cumulative is how many of the times, which are in order, are not after another.
func cumulative(times []int64) func(_, to int64) float64 {
	return func(_, to int64) float64 {
		n, _ := slices.BinarySearch(times, to+1)
		return float64(n)
	}
}

// longest is the longest wait of the messages that started in a span of time.
func longest(waits []waited) func(from, to int64) float64 {
	return func(from, to int64) float64 {
		i := sort.Search(len(waits), func(i int) bool { return waits[i].at >= from })
		if i == len(waits) || waits[i].at >= to {
			return math.NaN()
		}
		var most int64
		for ; i < len(waits) && waits[i].at < to; i++ {
			most = max(most, waits[i].wait)
		}
		return float64(most)
	}
}

// plot is an area with axes.
type plot struct {
	b           *strings.Builder
	from, to    int64 // ms since 1970
	top, height int
	most        float64
}

func (p plot) x(ms int64) float64 {
	return plotLeft + plotWidth*float64(ms-p.from)/float64(max(1, p.to-p.from))
}

func (p plot) y(v float64) float64 {
	return float64(p.top+p.height) - float64(p.height)*v/max(1, p.most)
}

// draw draws the value of a function for each pixel's span of time. It leaves out spans for which that is not a number.
func (p plot) draw(l line, of func(from, to int64) float64) {
	var d strings.Builder
	last := math.NaN()
	for i := range plotWidth {
		from := p.from + (p.to-p.from)*int64(i)/plotWidth
		to := p.from + (p.to-p.from)*int64(i+1)/plotWidth
		v := of(from, to)
		if math.IsNaN(v) || v == last && i < plotWidth-1 {
			continue
		}
		if math.IsNaN(last) {
			fmt.Fprintf(&d, "M%d %.1f", plotLeft+i, p.y(v))
		} else {
			fmt.Fprintf(&d, "H%dV%.1f", plotLeft+i, p.y(v))
		}
		last = v
	}
	fmt.Fprintf(p.b, `<path d="%s" %s/>`+"\n", d.String(), l.stroke())
}

// axes draws a frame, a grid and what its lines stand for.
func (p plot) axes(title string, scale scale, times bool) {
	bottom := p.top + p.height
	text(p.b, plotLeft, p.top-6, `fill="#555555"`, title)
	step := scale.step(p.most, p.height/30)
	for v := 0.0; v <= p.most; v += step {
		fmt.Fprintf(p.b, `<path d="M%d %.1fh%d" stroke="#e4e4e4"/>`+"\n", plotLeft, p.y(v), plotWidth)
		text(p.b, plotLeft-8, int(p.y(v))+4, `text-anchor="end"`, scale.label(v, step))
	}
	step = timing.step(float64(p.to-p.from), plotWidth/80)
	for v := 0.0; v <= float64(p.to-p.from); v += step {
		x := p.x(p.from + int64(v))
		fmt.Fprintf(p.b, `<path d="M%.1f %dv%d" stroke="#e4e4e4"/>`+"\n", x, p.top, p.height)
		if times {
			text(p.b, int(x), bottom+18, `text-anchor="middle"`, timing.label(v, step))
		}
	}
	fmt.Fprintf(p.b, `<path d="M%d %dV%dH%d" fill="none" stroke="#999999"/>`+"\n", plotLeft, p.top, bottom, plotLeft+plotWidth)
}

// scale chooses the lines of a grid.
type scale struct {
	steps []float64
	label func(v, step float64) string
}

var counting = scale{
	[]float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6},
	func(v, _ float64) string { return fmt.Sprint(int(v)) },
}

// timing is for milliseconds.
var timing = scale{
	[]float64{1, 10, 100, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5},
	func(v, step float64) string {
		switch {
		case v == 0:
			return "0"
		case step < 1e3:
			return fmt.Sprintf("%g ms", v)
		case step < 6e4:
			return fmt.Sprintf("%g s", v/1e3)
		case step < 36e5:
			return fmt.Sprintf("%g min", v/6e4)
		}
		return fmt.Sprintf("%g h", v/36e5)
	},
}

// step is the smallest that makes at most so many lines.
func (s scale) step(most float64, lines int) float64 {
	for _, step := range s.steps {
		if most/step <= float64(lines) {
			return step
		}
	}
	last := s.steps[len(s.steps)-1]
	return last * math.Ceil(most/float64(lines)/last)
}

func text(b *strings.Builder, x, y int, attributes, s string) {
	if attributes != "" {
		attributes = " " + attributes
	}
	fmt.Fprintf(b, `<text x="%d" y="%d"%s>`, x, y, attributes)
	_ = xml.EscapeText(b, []byte(s)) // it writes to memory
	b.WriteString("</text>\n")
}
