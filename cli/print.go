package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// cut shortens a text to a width.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// writeTable writes rows with columns as wide as they need, the first one at least leftmost. What is in that one, and what begins
// with a space, begins on the left, everything else ends on the right.
func writeTable(w io.Writer, leftmost int, rows [][]string) {
	widths := []int{leftmost}
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(strings.TrimPrefix(cell, " ")))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			text, left := strings.CutPrefix(cell, " ")
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i == 0 || left {
				line.WriteString(text + pad + "  ")
			} else {
				line.WriteString(pad + text + "  ")
			}
		}
		fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
	}
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// moment is a time in JSON: in UTC, to the millisecond; null if it is zero.
type moment time.Time

func (m moment) MarshalJSON() ([]byte, error) {
	t := time.Time(m)
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000Z"`)), nil
}
