package main

import (
	"fmt"
	"html"
	"os"
	"strings"
	"time"
)

// recording keeps the text on the screen, a frame each second, and writes it as one animated SVG.
type recording struct {
	frames []string
	next   time.Time
}

const (
	frameEvery = time.Second
	lastFrame  = 6 * time.Second // the end stands still for so long
	fontSize   = 14
	lineHeight = 18
	margin     = 16
)

// add keeps text as the frame of a second.
func (r *recording) add(text string, at time.Time) {
	if at.Before(r.next) {
		return
	}
	r.next = at.Add(frameEvery)
	r.frames = append(r.frames, text)
}

// svg draws the frames one after the other, for ever. A reader with reduced motion set sees the last frame.
func (r *recording) svg() string {
	columns, lines := 0, 0
	for _, f := range r.frames {
		lines = max(lines, strings.Count(f, "\n")+1)
		for l := range strings.SplitSeq(f, "\n") {
			columns = max(columns, len([]rune(l)))
		}
	}
	width, height := 2*margin+columns*fontSize*62/100, 2*margin+lines*lineHeight
	last := len(r.frames) - 1
	total := time.Duration(last)*frameEvery + lastFrame
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / total.Seconds() }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d">`+"\n", width, height)
	b.WriteString("<title>make demo: two consumer processes keep a dozen shops at their limits</title>\n")
	fmt.Fprintf(&b, `<style>
text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d6deeb;white-space:pre}
g{visibility:hidden;animation:frame %.0fs step-end infinite}
#last{animation-name:last}
@keyframes frame{0%%{visibility:visible}%.3f%%{visibility:hidden}}
@keyframes last{0%%{visibility:visible}%.3f%%{visibility:hidden}}
@media(prefers-reduced-motion){g{animation:none}#last{visibility:visible}}
</style>
<rect width="100%%" height="100%%" rx="8" fill="#0b1a26"/>
`, fontSize, total.Seconds(), percent(frameEvery), percent(lastFrame))
	for i, f := range r.frames {
		id := ""
		if i == last {
			id = ` id="last"`
		}
		fmt.Fprintf(&b, `<g%s style="animation-delay:%ds">`+"\n", id, i*int(frameEvery.Seconds()))
		y := margin
		for l := range strings.SplitSeq(f, "\n") {
			if y += lineHeight; strings.TrimSpace(l) != "" {
				fmt.Fprintf(&b, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", margin, y-5, html.EscapeString(strings.TrimRight(l, " ")))
			}
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// write ends the recording with text as its last frame.
func (r *recording) write(file, text string) error {
	r.frames = append(r.frames, text)
	return os.WriteFile(file, []byte(r.svg()), 0o644)
}
