package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/drip-go/drip/internal/columns"
)

func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// cutLast shortens the last column, so that rows which are all as long fit a width. It leaves it 20 characters.
func cutLast(rows [][]string, width int) {
	last := len(rows[0]) - 1
	for _, w := range columns.Widths(rows)[:last] {
		width -= w + 2
	}
	for _, row := range rows {
		row[last] = " " + cut(strings.TrimPrefix(row[last], " "), max(20, width))
	}
}

// withoutEmpty removes the columns in which every row has "-", except for the headings.
func withoutEmpty(headings map[string]bool, rows [][]string) [][]string {
	used := map[int]bool{0: true}
	for _, row := range rows {
		for i, cell := range row {
			if !headings[row[0]] && strings.TrimSpace(cell) != "-" {
				used[i] = true
			}
		}
	}
	kept := make([][]string, len(rows))
	for n, row := range rows {
		for i, cell := range row {
			if used[i] {
				kept[n] = append(kept[n], cell)
			}
		}
	}
	return kept
}

// withoutColumn removes the column with this heading.
func withoutColumn(heading string, rows [][]string) [][]string {
	at := -1
	for _, row := range rows {
		at = max(at, slices.Index(row, heading))
	}
	for i, row := range rows {
		if at > 0 && at < len(row) {
			rows[i] = slices.Delete(row, at, at+1)
		}
	}
	return rows
}

// writeJSON escapes in texts what a terminal acts on, or does not show. Package json leaves most of it as it is.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r == '\n' || unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
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
