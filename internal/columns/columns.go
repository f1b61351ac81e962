// Package columns writes text for terminals: tables and paragraphs.
package columns

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Write writes rows with columns as wide as they need, the first one at least leftmost. It aligns the first column
// and cells that begin with a space left, and all others right.
func Write(w io.Writer, leftmost int, rows [][]string) {
	widths := Widths(rows)
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

// Widths returns the widths that columns need.
func Widths(rows [][]string) (widths []int) {
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

// Lines breaks a text between words into lines of at most so many characters.
func Lines(text string, width int) (all []string) {
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
