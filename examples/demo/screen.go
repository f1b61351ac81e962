package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// screen shows the progress of the demo: on a terminal as a table that it redraws in place, else as a line now and then.
// It is safe for concurrent use.
type screen struct {
	out      io.Writer
	terminal bool
	record   *recording // nil: none

	mu    sync.Mutex
	next  time.Time // when to show something again
	drawn int       // lines of the table on the terminal, above the cursor
}

func newScreen(f *os.File) *screen {
	info, err := f.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &screen{out: f, terminal: terminal}
}

const (
	drawEvery  = 200 * time.Millisecond
	printEvery = 3 * time.Second
)

// show shows s if it is time for it.
func (s *screen) show(now snapshot, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record != nil {
		s.record.add(table(now), at)
	}
	if at.Before(s.next) {
		return
	}
	if s.terminal {
		s.next = at.Add(drawEvery)
		s.draw(table(now))
		return
	}
	s.next = at.Add(printEvery)
	fmt.Fprintln(s.out, line(now))
}

// say prints text in place of the table; the next table comes below.
func (s *screen) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.terminal {
		io.WriteString(s.out, erase(s.drawn))
		s.drawn = 0
	}
	fmt.Fprintln(s.out, text)
}

// draw requires mu held.
func (s *screen) draw(text string) {
	// A line too long for the terminal is cut: one that wraps would take two.
	io.WriteString(s.out, erase(s.drawn)+noWrap+text+"\n"+wrap)
	s.drawn = strings.Count(text, "\n") + 1
}

const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// erase returns the text that removes the last lines above the cursor from a terminal.
func erase(lines int) string {
	if lines == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", lines)
}

// mostRows is how many shops the table shows, so that it fits a small terminal.
const mostRows = 16

// table shows each shop in a row of at most 79 characters.
func table(s snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %11s %9s %9s  %-11s %-18s %6s\n",
		"shop", "done", "in flight", "postponed", "this second", "", "ETA")
	for i, h := range s.shops {
		if i == mostRows-1 && len(s.shops) > mostRows {
			fmt.Fprintf(&b, "... and %d more shops\n", len(s.shops)-i)
			break
		}
		b.WriteString(row(h) + "\n")
	}
	t := s.total()
	b.WriteString(row(t) + "\n")
	fmt.Fprintf(&b, "%s. Calls refused by the provider: %d", seconds(s.elapsed), t.refused)
	return b.String()
}

func row(h shopNow) string {
	second, eta := fmt.Sprintf("%3d of %-3d", h.used, h.limit), fmt.Sprintf("%.0f s", h.eta.Seconds())
	if h.done == h.orders {
		eta = "done"
		if h.used == 0 {
			second = ""
		}
	}
	return fmt.Sprintf("%-8s %5d/%-5d %9d %9d  %-11s %s %6s",
		h.name, h.done, h.orders, h.inFlight, h.postponed, second, bar(h.done, h.orders, 18), eta)
}

func bar(done, of, width int) string {
	n := 0
	if of > 0 {
		n = done * (width - 2) / of
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat(".", width-2-n) + "]"
}

// line returns all shops in one line.
func line(s snapshot) string {
	t := s.total()
	return fmt.Sprintf("%7s: %d of %d done, %d in flight, %d postponed, %d calls in this second, %d refused, %.0f s to go",
		seconds(s.elapsed), t.done, t.orders, t.inFlight, t.postponed, t.used, t.refused, t.eta.Seconds())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// summary returns the table at the end. Messages that were not handled and are still in the queues do not count as lost.
func summary(rs []result, left int) string {
	undone := "lost"
	if left > 0 {
		undone = "undone"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-45s %10s %7s\n", "", "postponed", "longest")
	fmt.Fprintf(&b, "%-8s %8s %6s %7s %6s %5s %5s %4s %7s %7s\n",
		"shop", "messages", "calls", "refused", undone, "twice", "mean", "most", "wait", "time")
	for _, r := range rs {
		fmt.Fprintf(&b, "%-8s %8d %6d %7d %6d %5d %5.2f %4d %7s %7s\n",
			r.name, r.orders, r.calls, r.refused, r.undone, r.twice, r.mean(), r.most, seconds(r.wait), seconds(r.took))
	}
	b.WriteString(`refused, twice: calls the provider refused, messages with more than one call.
postponed: how often a limit put off a message. longest wait: until its call.
time: from a shop's first message until its last one is handled.
`)
	return b.String()
}

func (r result) mean() float64 { return float64(r.postponements) / float64(max(1, r.orders)) }

// shared returns lines about the limits that the shops share, as the provider has counted them.
func shared(r sharedResult, rules map[string]rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s %8s %6s %7s %6s\n", "limit", "a second", "calls", "refused", "used")
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		used := ""
		if name == appLimit && r.used > 0 {
			used = fmt.Sprintf("%.1f%%", 100*r.used)
		}
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-8s %8d %6d %7d %6s", name, rules[name].PerSecond, r.calls[name], r.refused[name], used), " ") + "\n")
	}
	b.WriteString("used: calls / calls that the provider allows the app, while shops wait for it.\n")
	if r.urgent > 0 {
		fmt.Fprintf(&b, "Urgent messages: %d. They waited %s, at most %s; the others %s.\n",
			r.urgent, seconds(r.urgentMean), seconds(r.urgentMost), seconds(r.othersMean))
	}
	return b.String()
}

// verdict says in words how the demo ended. cause is why it ended early, left is how many messages are in which
// queues, missing describes messages that were not handled. It is ok if each message was handled and no call refused.
func verdict(all result, left map[string]int, missing []string, cause error) (text string, ok bool) {
	var bad []string
	if cause != nil {
		bad = append(bad, cause.Error())
	}
	if all.refused > 0 {
		bad = append(bad, fmt.Sprintf("calls that the provider refused: %d", all.refused))
	}
	remaining := 0
	for _, n := range left {
		remaining += n
	}
	if all.undone > 0 {
		bad = append(bad, fmt.Sprintf("messages that were not handled: %d; in the queues: %d", all.undone, remaining))
	}
	for _, queue := range slices.Sorted(maps.Keys(left)) {
		bad = append(bad, fmt.Sprintf("messages left in %s: %d", queue, left[queue]))
	}
	if bad = append(bad, missing...); len(bad) > 0 {
		return "FAILED\n  " + strings.Join(bad, "\n  "), false
	}
	return fmt.Sprintf("OK: %d messages handled, none lost, no call refused.", all.orders), true
}
