package lab

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// WriteTable writes the report as text, a line a policy:
//
//	done              messages handled, of how many
//	redeliveries      trips through the broker, a message: the mean, what 99 % do not exceed, the most
//	held asks         how often it was asked about while a consumer had it in hand, a message
//	used              of the binding limit
//	makespan          from the first arrival to the end of the last operation
//	wait              from a message's arrival to its start: the mean, what 99 % do not exceed, the longest
//	overtaken         messages that started after one that arrived an interval later
//	over limit        calls that a provider would have refused
func (r Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", r.Scenario.Name, r.Scenario.About)
	rows := [][]string{
		{"", "", "redeliveries", "", "", "held", "used of", "", "wait", "", "", "", "over"},
		{"policy", "done", "mean", "p99", "max", "asks", r.Binding, "makespan", "mean", "p99", "max", "overtaken", "limit"},
	}
	for _, res := range r.Results {
		done := fmt.Sprint(res.Done)
		if res.Done < res.Messages {
			done += fmt.Sprintf(" of %d", res.Messages)
		}
		rows = append(rows, []string{
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
			fmt.Sprint(res.OverLimit),
		})
	}
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		line := fmt.Sprintf("  %-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			line += fmt.Sprintf("  %*s", widths[i+1], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
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
