package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/drip-go/drip/internal/columns"
)

// WriteTable writes the report as text of at most 80 columns: a column a policy, as long as they are four, and a line for
// each measure.
func (r Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	title := r.Scenario.Name
	if r.Scenario.About != "" {
		title += ": " + r.Scenario.About
	}
	paragraph(&b, title)
	rows := [][]string{{""}, {"   messages handled"},
		{"   postponements, mean"}, {"     99 % have at most"}, {"     most"}, {"   asked in hand, mean"},
		{"   used of " + r.Binding}, {"   makespan"},
		{"   wait, mean"}, {"     99 % wait at most"}, {"     longest"},
		{"   overtaken"}, {"   calls over the limit"},
	}
	var notes []string
	for _, res := range r.Results {
		done := fmt.Sprint(res.Done)
		if res.Done < res.Messages {
			done += fmt.Sprintf(" of %d", res.Messages)
		}
		if res.GaveUp > 0 {
			done += "*"
			notes = append(notes, fmt.Sprintf("* %s was given up after %d events: the messages that are left were postponed again and again.", res.Policy, res.GaveUp))
		}
		over := fmt.Sprint(res.OverLimit)
		if r.Uncounted {
			over = "-"
		}
		for i, cell := range []string{
			res.Policy,
			done,
			fmt.Sprintf("%.2f", res.Redeliveries.Mean),
			fmt.Sprint(res.Redeliveries.P99),
			fmt.Sprint(res.Redeliveries.Max),
			fmt.Sprintf("%.2f", res.HeldAsks),
			fmt.Sprintf("%.1f %%", 100*res.Utilisation),
			short(res.Makespan),
			short(res.Wait.Mean),
			short(res.Wait.P99),
			short(res.Wait.Max),
			fmt.Sprint(res.Overtaken),
			over,
		} {
			rows[i] = append(rows[i], cell)
		}
	}
	if r.Uncounted {
		notes = append(notes, "- Nothing counts the calls: the scenario has no providers.")
	}
	columns.Write(&b, 0, rows)
	for _, note := range notes {
		paragraph(&b, note)
	}
	_, err := io.WriteString(w, strings.Map(shown, b.String()))
	return err
}

// shown replaces what a terminal would act on, because others may have chosen the names.
func shown(r rune) rune {
	if r == '\n' || unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

func paragraph(b *strings.Builder, text string) {
	b.WriteString(strings.Join(columns.Lines(text, 80), "\n") + "\n")
}

// short is a duration to about three digits.
func short(d time.Duration) string {
	switch s := d.Seconds(); {
	case d == 0:
		return "0"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case s < 99.95:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", s), ".0") + " s"
	case s < 5999.5:
		return fmt.Sprintf("%.1f min", s/60)
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}
