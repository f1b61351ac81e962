package entities

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
)

// Closed returns in words why an entity is closed.
const Closed = "closed, by pause or by the provider"

// Why returns in words why a newcomer does not run now. It is empty if one runs, or if the limits are not known.
func (r *Report) Why() string {
	if !r.Limits || r.Delay == 0 {
		return ""
	}
	why := Closed
	if r.ClosedUntil.IsZero() {
		why = r.because(r.Bound)
	}
	if r.Then != drip.BoundNone {
		why += "; then " + r.because(r.Then)
	}
	return why
}

// because returns in words a cause of the delay.
func (r *Report) because(b drip.Bound) string {
	if r.Limit != "" {
		return fmt.Sprintf("the shared limit %q: %s", r.Limit, b)
	}
	switch b {
	case drip.BoundTokens:
		return "all tokens are out, or others wait for one"
	case drip.BoundBooked:
		return "the rest of the capacity is booked"
	default:
		if i := int(b - drip.BoundWindow); i >= 0 && i < len(r.Windows) {
			return "the capacity of " + Window(r.Windows[i].Window) + " is used up"
		}
		return b.String()
	}
}

// Window is a window in words: "5, +3 every 1s", or "5 tokens, +3 every 1s".
func Window(w drip.Window) string {
	return fmt.Sprintf("%s, +%d every %s", strings.TrimSpace(fmt.Sprint(w.Size, " ", Printable(w.Unit))), w.RefreshRate, Short(w.RefreshInterval))
}

// Unlimited reports whether a Size or a Concurrency stands for no limit.
func Unlimited(n int) bool { return n >= decision.MostUnits }

// Tokens is the number of tokens in use, and of all: "2 of 5". Without a limit it is "2".
func (r *Report) Tokens() string {
	if !r.Limits || Unlimited(r.Concurrency) {
		return fmt.Sprint(r.InUse)
	}
	return fmt.Sprintf("%d of %d", r.InUse, r.Concurrency)
}

// Capacity is a window with its end, if that does not follow from the length: "5, +5 every 24h until 2026-02-01 00:00:00.000".
func Capacity(w drip.WindowStatus, now time.Time, zone *time.Location) string {
	if w.Align == (drip.Alignment{}) {
		return Window(w.Window)
	}
	return Window(w.Window) + " until " + Clock(w.Refresh, now, zone)
}

// Limit is a window, and a number of tokens, in words. Zero ones are left out.
func Limit(p drip.Pin) string {
	var parts []string
	if p.Size > 0 && p.Size == p.RefreshRate {
		parts = append(parts, fmt.Sprintf("%d every %s", p.Size, Short(p.RefreshInterval)))
	} else if p.Size > 0 {
		parts = append(parts, Window(p.Window))
	}
	if p.Concurrency > 0 {
		parts = append(parts, Count(p.Concurrency, "token"))
	}
	if p.Raise {
		parts = append(parts, "also above the limits")
	}
	return strings.Join(parts, ", ")
}

// ParsePin makes a Pin of texts: a limit such as "5/1s", and the burst if that is more. Empty texts and
// zero numbers pin nothing. Its error is for the person that has typed the texts.
func ParsePin(limit string, burst, concurrency int, d time.Duration, raise bool) (p drip.Pin, err error) {
	p = drip.Pin{Concurrency: concurrency, For: min(d, Longest), Raise: raise}
	if limit = strings.TrimSpace(limit); limit != "" {
		number, interval, ok := strings.Cut(limit, "/")
		n, err := strconv.Atoi(strings.TrimSpace(number))
		every, err2 := time.ParseDuration(strings.TrimSpace(interval))
		if err == nil && n < 1 {
			return p, errors.New("the limit must be above 0")
		}
		if !ok || err != nil || err2 != nil || every < time.Millisecond || every%time.Millisecond != 0 {
			return p, fmt.Errorf("%q is no limit such as 5/1s or 100/1m", limit)
		}
		p.Window = drip.Window{Size: n, RefreshRate: n, RefreshInterval: every}
	}
	switch {
	case max(p.Size, burst, concurrency) > decision.MostUnits:
		return p, fmt.Errorf("the limit, the burst and the concurrency may be %d at most", int64(decision.MostUnits))
	case p.RefreshInterval > Longest:
		return p, fmt.Errorf("the limit is for %s; it may be for %s at most", Short(p.RefreshInterval), Short(Longest))
	case burst < 0:
		return p, errors.New("the burst is below 0")
	case concurrency < 0:
		return p, errors.New("the concurrency is below 0")
	case d < 0:
		return p, errors.New("the duration is below 0")
	case limit == "" && burst > 0:
		return p, errors.New("a burst needs a limit")
	case burst > 0 && burst < p.RefreshRate:
		return p, fmt.Errorf("the burst is %d; it must be at least the number of the limit, %d", burst, p.RefreshRate)
	case limit == "" && concurrency == 0:
		return p, errors.New("nothing is pinned: it needs a limit, such as 5/1s, or a concurrency")
	case burst > 0:
		p.Size = burst
	}
	return p, nil
}

// Units is "3" or "owes 3".
func Units(n int64) string {
	if n < 0 {
		return fmt.Sprintf("owes %d", -n)
	}
	return fmt.Sprint(n)
}

// Count is "1 ticket", "12 tickets", "2 entities".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if stem, ok := strings.CutSuffix(what, "y"); ok {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Short is a duration to about three digits, in the form in which durations are given.
func Short(d time.Duration) string {
	switch {
	case d <= -time.Minute || d >= time.Minute:
		d = d.Round(time.Second)
	case d <= -time.Second || d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Clock is the time of day of t, with the date if that is not the day of now.
func Clock(t, now time.Time, zone *time.Location) string {
	t, now = t.In(zone), now.In(zone)
	const day = "2006-01-02"
	if t.Format(day) == now.Format(day) {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05.000")
}

// Printable keeps a text that others have chosen from moving the cursor or hiding a part of itself, such as a blank at its end.
func Printable(text string) string {
	quoted := fmt.Sprintf("%q", text)
	if inner := quoted[1 : len(quoted)-1]; inner != text || strings.TrimSpace(text) != text {
		return quoted
	}
	return text
}

// Visible escapes the characters of a foreign text that a reader cannot see, that move the text beside it, or that a terminal acts on.
func Visible(text string, except ...rune) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || slices.Contains(except, r) {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}
