// Drawings writes the charts of README.md and docs/concepts.md, from runs of drip in virtual time:
//
//	go run ./scripts/drawings -into docs
//
// It needs no server. The same source gives the same files.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/lab"
)

// drawings are the files and the functions that draw them.
var drawings = map[string]func() (string, error){"retry-after.svg": retryAfter, "bucket.svg": bucket}

func main() {
	log.SetFlags(0)
	log.SetPrefix("drawings: ")
	into := flag.String("into", "docs", "the `folder` for the drawings")
	flag.Parse()
	for name, draw := range drawings {
		text, err := draw()
		if err == nil {
			err = os.WriteFile(filepath.Join(*into, name), []byte(text), 0o644)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
}

// svg adds the colours for light and dark screens. The drawing has a background, because a page may be light on a dark screen.
func svg(width, height int, title, body string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d">
<title>%s</title>
<style>
text{font:13px system-ui,sans-serif;fill:#24292f}.page{fill:#fff}
.soft{fill:#57606a}.strong{font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}
.drip{fill:#0072b2}.other{fill:#d55e00}.grid{stroke:#d0d7de}.line{fill:none;stroke:#0072b2;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.soft{fill:#9198a1}.drip{fill:#56b4e9}.other{fill:#e69f00}.grid{stroke:#3d444d}.line{stroke:#56b4e9}}
</style>
<rect width="100%%" height="100%%" class="page"/>
%s</svg>
`, width, height, title, body)
}

// retryAfter draws how often a message is postponed, by drip and by a limiter that answers "retry after".
func retryAfter() (string, error) {
	const (
		left, top, row, width = 250, 58, 44, 760
		smallest, decade      = 0.1, 110 // pixels for a factor of ten
	)
	x := func(v float64) float64 { return left + decade*math.Log10(max(v, smallest)/smallest) }
	var b strings.Builder
	scenarios := []struct{ name, label string }{
		{"rate-burst", "2,000 messages at once"},
		{"sliding-window", "a sliding window"},
		{"two-windows", "two windows"},
		{"concurrency-burst", "5 calls at once"},
		{"rate-late-hops-60/60s", "delays late by up to a minute"},
		{"outage-1h", "an hour without a consumer"},
	}
	bottom := top + row*len(scenarios)
	b.WriteString(`<text x="16" y="24" class="strong">Postponements of a message, on average (logarithmic)</text>` + "\n")
	fmt.Fprintf(&b, `<rect x="%d" y="34" width="12" height="12" class="drip"/><text x="%d" y="45">drip</text>`+"\n", left, left+18)
	fmt.Fprintf(&b, `<rect x="%d" y="34" width="12" height="12" class="other"/><text x="%d" y="45">a limiter that answers "retry after"</text>`+"\n", left+70, left+88)
	for v := smallest; v <= 1000; v *= 10 {
		fmt.Fprintf(&b, `<path d="M%.0f %dV%d" class="grid"/><text x="%.0f" y="%d" class="soft middle">%g</text>`+"\n", x(v), top, bottom, x(v), bottom+18, v)
	}
	for i, s := range scenarios {
		scenario, ok := lab.Named(s.name)
		if !ok {
			return "", fmt.Errorf("there is no scenario %s", s.name)
		}
		report, err := lab.Run(scenario, 1, lab.Admit, lab.RetryAfter)
		if err != nil {
			return "", err
		}
		y := top + row*i + 6
		fmt.Fprintf(&b, `<text x="%d" y="%d" class="end">%s</text>`+"\n", left-12, y+20, s.label)
		for j, class := range []string{"drip", "other"} {
			mean := report.Results[j].Redeliveries.Mean
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="14" class="%s"/><text x="%.1f" y="%d">%s</text>`+"\n",
				left, y+16*j, x(mean)-left, class, x(mean)+6, y+16*j+12, short(mean))
		}
	}
	return svg(width, bottom+30, "Postponements of a message: drip about 1, retry-after up to 962", b.String()), nil
}

func short(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// bucket draws the capacity of an entity over six seconds, and the operations that run.
func bucket() (string, error) {
	const (
		left, top, second, unit = 110, 70, 100, 30
		size, rate, seconds     = 5, 3, 6
		bottom                  = top + unit*size
	)
	begin := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	now := begin
	ctx := context.Background()
	limiter, err := drip.New(drip.Options{
		Size: size, RefreshRate: rate, Concurrency: 20,
		Start: begin.Add(-time.Hour), Clock: func() time.Time { return now },
	})
	if err != nil {
		return "", err
	}
	type message struct {
		due    time.Time
		ticket drip.Ticket
	}
	var waiting []message
	for range 12 {
		waiting = append(waiting, message{due: begin})
	}
	for range 3 {
		waiting = append(waiting, message{due: begin.Add(5200 * time.Millisecond)})
	}
	var line, dots strings.Builder
	for tick := range seconds*10 + 1 {
		now = begin.Add(time.Duration(tick) * 100 * time.Millisecond)
		x := left + second*tick/10
		before, err := limiter.Inspect(ctx, "shop")
		if err != nil {
			return "", err
		}
		capacity := size // of an entity that is not stored yet
		if len(before.Windows) > 0 {
			capacity = before.Windows[0].Capacity
		}
		fmt.Fprintf(&line, "H%dV%d", x, bottom-unit*capacity)
		run, put := 0, 0
		for i := range waiting {
			m := &waiting[i]
			if m.due.IsZero() || m.due.After(now) {
				continue
			}
			a, err := limiter.Admit(ctx, "shop", drip.Request{Ticket: m.ticket})
			if err != nil {
				return "", err
			}
			if a.Delay > 0 {
				m.due, m.ticket = now.Add(a.Delay), a.Ticket
				put++
				continue
			}
			fmt.Fprintf(&dots, `<circle cx="%d" cy="%d" r="5" class="drip"/>`+"\n", x+8, bottom+44+14*run)
			run++
			m.due = time.Time{}
			if err := limiter.Settle(ctx, "shop", a.Lease, 1); err != nil {
				return "", err
			}
		}
		if put > 0 {
			fmt.Fprintf(&dots, `<text x="%d" y="%d" class="soft">%d postponed</text>`+"\n", x+18, bottom+49, put)
		}
		fmt.Fprintf(&line, "V%d", bottom-unit*(capacity-run))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<text x="16" y="24" class="strong">One entity with Size: %d, RefreshRate: %d, RefreshInterval: 1s</text>`+"\n", size, rate)
	b.WriteString(`<text x="16" y="46" class="soft">12 messages arrive at 12:00:00, 3 more at 12:00:05.2</text>` + "\n")
	for c := range size + 1 {
		fmt.Fprintf(&b, `<path d="M%d %dH%d" class="grid"/><text x="%d" y="%d" class="soft end">%d</text>`+"\n", left, bottom-unit*c, left+second*seconds, left-8, bottom-unit*c+4, c)
	}
	for s := range seconds + 1 {
		fmt.Fprintf(&b, `<text x="%d" y="%d" class="soft middle">12:00:%02d</text>`+"\n", left+second*s, bottom+22, s)
	}
	fmt.Fprintf(&b, `<text x="16" y="%d">capacity</text><text x="16" y="%d">run</text>`+"\n", top+unit*size/2, bottom+49)
	fmt.Fprintf(&b, `<path d="M%d %d%s" class="line"/>`+"\n", left, bottom-unit*size, line.String())
	b.WriteString(dots.String())
	return svg(left+second*seconds+60, bottom+112, "The capacity of an entity over six seconds", b.String()), nil
}
