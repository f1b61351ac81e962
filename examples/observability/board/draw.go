package board

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// Sizes of the picture, in pixels.
const (
	width    = 1200 // Grafana divides it into 24 columns
	rowPixel = 27   // a row of Grafana's grid
	margin   = 6
	top      = 34 // the board's title
	font     = 11
)

var palette = []string{"#3d7dca", "#d9822b", "#4c9a52", "#c2453d", "#8a63b8", "#2a9d9d", "#a8893a", "#7a8691", "#c65d97", "#5b6abf"}

// Drawing is a panel with its lines.
type Drawing struct {
	Panel
	Lines []Line
}

// Draw writes the panels as an SVG picture, over the time of the recording.
func Draw(w io.Writer, title string, r *Recording, panels []Drawing) error {
	height := 0
	for _, p := range panels {
		height = max(height, p.GridPos.Y+p.GridPos.H)
	}
	height = top + height*rowPixel + margin
	d := &drawing{begin: r.Begin(), end: r.End(), gap: r.Every * 3 / 2}
	d.f(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica,Arial,sans-serif" font-size="%d" fill="#333">`, width, height, font)
	d.f(`<rect width="%d" height="%d" fill="#f4f5f5"/>`, width, height)
	d.f(`<text x="%d" y="23" font-size="16" font-weight="bold">%s</text>`, 2*margin, html.EscapeString(title))
	for _, p := range panels {
		d.panel(p)
	}
	d.f(`</svg>`)
	_, err := io.WriteString(w, d.String())
	return err
}

type drawing struct {
	strings.Builder
	begin, end time.Time
	gap        time.Duration // where a line breaks
}

func (d *drawing) f(format string, a ...any) { fmt.Fprintf(d, format+"\n", a...) }

func (d *drawing) panel(p Drawing) {
	x, y := p.GridPos.X*width/24, top+p.GridPos.Y*rowPixel
	w, h := p.GridPos.W*width/24-margin, p.GridPos.H*rowPixel-margin
	x += margin / 2
	d.f(`<g transform="translate(%d %d)"><rect width="%d" height="%d" rx="3" fill="#fff" stroke="#dcdfe2"/>`, x, y, w, h)
	d.f(`<text x="8" y="17" font-weight="bold">%s</text>`, html.EscapeString(p.Title))
	if p.Type == "stat" {
		d.stat(p, w, h)
	} else {
		d.graph(p, w, h)
	}
	d.f(`</g>`)
}

func (d *drawing) stat(p Drawing, w, h int) {
	text := "no data"
	if len(p.Lines) > 0 && p.Lines[0].HasData() {
		last := p.Lines[0].Points[len(p.Lines[0].Points)-1]
		text = strconv.FormatFloat(last.V, 'f', p.FieldConfig.Defaults.Decimals, 64)
	}
	d.f(`<text x="%d" y="%d" font-size="26" text-anchor="middle">%s</text>`, w/2, h/2+21, text)
}

// graph draws lines, or areas on top of each other.
func (d *drawing) graph(p Drawing, w, h int) {
	const left, right, above = 50, 12, 30
	legend := d.legend(p.Lines, 8, w-16, h-10)
	plotW, plotH := float64(w-left-right), float64(h-above-24-legend)
	stacked := p.FieldConfig.Defaults.Custom.Stacking.Mode == "normal"
	below := map[int64]float64{} // what is under the next area
	highest := 0.0
	shown := make([][]span, len(p.Lines))
	for i, l := range p.Lines {
		for _, point := range l.Points {
			if math.IsNaN(point.V) || math.IsInf(point.V, 0) {
				continue
			}
			s := span{point.T, 0, point.V}
			if stacked {
				s.low = below[point.T.UnixMilli()]
				s.high += s.low
				below[point.T.UnixMilli()] = s.high
			}
			highest = max(highest, s.high)
			shown[i] = append(shown[i], s)
		}
	}
	step := tick(highest)
	ceiling := max(step, math.Ceil(highest/step-1e-9)*step)
	at := func(t time.Time, v float64) string {
		return fmt.Sprintf("%.0f,%.1f", left+plotW*t.Sub(d.begin).Seconds()/max(d.end.Sub(d.begin).Seconds(), 1e-9), above+plotH*(1-v/ceiling))
	}
	for v := 0.0; v <= ceiling*1.001; v += step {
		y := above + plotH*(1-v/ceiling)
		d.f(`<path d="M%d %.1fH%.0f" stroke="#e8eaec"/><text x="%d" y="%.1f" text-anchor="end" fill="#666">%s</text>`,
			left, y, left+plotW, left-6, y+4, value(v, ceiling, p.FieldConfig.Defaults.Unit))
	}
	seconds := d.end.Sub(d.begin).Seconds()
	for t := 0.0; t <= seconds; t += tick(seconds) {
		d.f(`<text x="%.0f" y="%.1f" text-anchor="middle" fill="#666">%.4g s</text>`, left+plotW*t/max(seconds, 1e-9), above+plotH+15, t)
	}
	for i, spans := range shown {
		colour := palette[i%len(palette)]
		var upper, lower []string
		empty := true
		for i, s := range spans {
			if !stacked && i > 0 && s.t.Sub(spans[i-1].t) > d.gap {
				d.line(upper, colour)
				upper = nil
			}
			upper = append(upper, at(s.t, s.high))
			lower = append([]string{at(s.t, s.low)}, lower...)
			empty = empty && s.high == s.low
		}
		switch {
		case stacked && empty:
		case stacked:
			d.f(`<polygon points="%s" fill="%s" fill-opacity=".75"/>`, strings.Join(append(upper, lower...), " "), colour)
		default:
			d.line(upper, colour)
		}
	}
}

func (d *drawing) line(points []string, colour string) {
	if len(points) == 1 {
		points = append(points, points[0]) // or it would not be seen
	}
	d.f(`<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5" stroke-linecap="round"/>`, strings.Join(points, " "), colour)
}

// span is the lower and the upper edge of an area at a time.
type span struct {
	t         time.Time
	low, high float64
}

// legend writes the lines' names in rows that end at y, and returns how high it is.
func (d *drawing) legend(lines []Line, x, w, y int) (height int) {
	const row = 14
	type entry struct{ row, x, i int }
	var entries []entry
	at := entry{x: x}
	for i, l := range lines {
		long := 26 + len(l.Name)*13/2
		if at.x > x && at.x+long > x+w {
			at = entry{row: at.row + 1, x: x}
		}
		entries = append(entries, entry{at.row, at.x, i})
		at.x += long
	}
	if len(entries) == 0 {
		return 0
	}
	rows := entries[len(entries)-1].row
	for _, e := range entries {
		base := y - (rows-e.row)*row
		d.f(`<rect x="%d" y="%d" width="10" height="4" fill="%s"/><text x="%d" y="%d" fill="#555">%s</text>`,
			e.x, base-5, palette[e.i%len(palette)], e.x+14, base, html.EscapeString(lines[e.i].Name))
	}
	return (rows + 1) * row
}

// tick returns a round distance of grid lines, so that three to six lines reach highest.
func tick(highest float64) float64 {
	if highest <= 0 {
		return 1
	}
	for step := math.Pow(10, math.Floor(math.Log10(highest))-1); ; step *= 10 {
		for _, f := range []float64{1, 2, 5} {
			if highest/(step*f) <= 5 {
				return step * f
			}
		}
	}
}

// value returns the text of a number at an axis that ends at ceiling.
func value(v, ceiling float64, unit string) string {
	if unit != "s" {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	switch {
	case v == 0:
		return "0"
	case ceiling < 1e-3:
		return strconv.FormatFloat(v*1e6, 'f', 0, 64) + " µs"
	case ceiling < 1:
		return strconv.FormatFloat(v*1e3, 'g', 4, 64) + " ms"
	}
	return strconv.FormatFloat(v, 'g', 4, 64) + " s"
}
