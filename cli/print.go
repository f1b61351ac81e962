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
)

// cut shortens a text to a width.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}

// lines breaks a text between words into lines of at most so many characters.
func lines(text string, width int) (all []string) {
	for word := range strings.FieldsSeq(text) {
		last := len(all) - 1
		if last < 0 || utf8.RuneCountInString(all[last])+1+utf8.RuneCountInString(word) > width {
			all = append(all, word)
		} else {
			all[last] += " " + word
		}
	}
	return all
}

// cutLast shortens the last column, so that rows which are all as long fit a width. It leaves it 20 characters.
func cutLast(rows [][]string, width int) {
	last := len(rows[0]) - 1
	for _, w := range widthsOf(rows)[:last] {
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

// widthsOf returns the widths that columns need.
func widthsOf(rows [][]string) (widths []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(strings.TrimPrefix(cell, " ")))
		}
	}
	return widths
}

// writeTable writes rows with columns as wide as they need, the first one at least leftmost. It aligns the first column
// and cells that begin with a space left, and all others right.
func writeTable(w io.Writer, leftmost int, rows [][]string) {
	widths := widthsOf(rows)
	widths[0] = max(widths[0], leftmost)
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
