package simulate

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drip-go/drip/internal/lab"
)

// trace has the arrival times of each entity's messages, in the order in which the entities first appear in the file.
type trace [][]time.Duration

func (t trace) messages() (n int) {
	for _, times := range t {
		n += len(times)
	}
	return n
}

// arrivals returns the times of one entity after the other, because a run asks for them in this way.
func (t trace) arrivals() lab.Arrivals {
	next := 0
	return func(*rand.Rand) []time.Duration {
		times := t[next%len(t)]
		next++
		return slices.Clone(times)
	}
}

// byteOrderMark is how spreadsheets begin a file of UTF-8.
const byteOrderMark = "\ufeff"

// readTrace reads a CSV file: a line a message, with the time and, if there are several, the entity. A first line that
// begins with no number is a header. The scenario begins at a given time, or if that is zero with the day of the first date. The other
// result is when it begins.
func readTrace(dir, name string, begins time.Time) (trace, time.Time, error) {
	fail := func(err error) (trace, time.Time, error) { return nil, begins, err }
	if name == "" {
		return fail(errors.New("a trace has a file"))
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	text := bufio.NewReader(f)
	if mark, _ := text.Peek(len(byteOrderMark)); string(mark) == byteOrderMark { // else the first message looks like a header
		_, _ = text.Discard(len(byteOrderMark))
	}
	r := csv.NewReader(text)
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	r.Comment = '#'
	type message struct {
		at     time.Duration // since 1970, or since the beginning
		entity string
		line   int
	}
	var messages []message
	var dates bool // the times are calendar times
	for n := 0; ; n++ {
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fail(fmt.Errorf("%s: %w", name, err))
		}
		at, date, err := parseTime(record[0])
		m := message{at: at}
		m.line, _ = r.FieldPos(0)
		if len(record) > 1 {
			m.entity = record[1]
		}
		switch {
		case err != nil && n == 0 && strings.IndexAny(record[0], "0123456789+-.") != 0:
			continue
		case err == nil && len(messages) > 0 && date != dates:
			err = errors.New("some times have a date and others have none")
		case err == nil && len(record) > 2:
			err = errors.New("there are more than two columns, time and entity")
		case err == nil && len(messages) > 0 && (m.entity == "") != (messages[0].entity == ""):
			err = errors.New("some messages have an entity and others have none")
		}
		if err != nil {
			return fail(fmt.Errorf("%s:%d: %w", name, m.line, err))
		}
		dates = date
		messages = append(messages, m)
	}
	if len(messages) == 0 {
		return fail(fmt.Errorf("%s: there is no message in it", name))
	}
	byTime := func(a, b message) int { return cmp.Compare(a.at, b.at) }
	first, last := slices.MinFunc(messages, byTime), slices.MaxFunc(messages, byTime)
	var begin time.Duration
	switch {
	case dates && !begins.IsZero():
		begin = time.Duration(begins.UnixMilli()) * time.Millisecond
	case dates: // windows begin at midnight
		begin = first.at.Truncate(24 * time.Hour)
		if t := time.UnixMilli(begin.Milliseconds()).UTC(); t.Year() >= firstYear && t.Year() <= lastYear {
			begins = t // of older dates the time of the day is enough
		}
	}
	if first.at < begin {
		return fail(fmt.Errorf("%s:%d: it is before the beginning", name, first.line))
	}
	if last.at-begin > time.Duration(longest) {
		return fail(fmt.Errorf("%s:%d: it is more than %v after the beginning", name, last.line, time.Duration(longest)))
	}
	var t trace
	numbers := map[string]int{}
	for _, m := range messages {
		i, seen := numbers[m.entity]
		if !seen {
			i = len(t)
			numbers[m.entity] = i
			t = append(t, nil)
		}
		t[i] = append(t[i], m.at-begin)
	}
	return t, begins, nil
}

// parseTime reads a date with a time, seconds since 1970, or a duration since the beginning.
func parseTime(text string) (at time.Duration, date bool, err error) {
	text = strings.TrimSpace(text)
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil && t.Year() >= 1970 && t.Year() < 2262 {
		return time.Duration(t.UnixMilli()) * time.Millisecond, true, nil
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(n) < 9e9 {
		return time.Duration(math.Round(n*1000)) * time.Millisecond, n >= 1e8, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d, false, nil
	}
	return 0, false, fmt.Errorf("%q is not a time such as 2026-01-31T12:00:00Z, 1769860800.250 or 1m30s", text)
}
