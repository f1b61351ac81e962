package worker

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/drip-go/drip"
)

// Note is the state that travels with a postponed message. As a text it is at most 256 bytes of ASCII, without quotes
// and commas, so that a header or a metadata value can hold it. The zero Note is the note of a new message.
type Note struct {
	Ticket        drip.Ticket // the slot that the limiter has booked
	Due           time.Time   // when to ask the limiter again, in microseconds; zero: now
	First         time.Time   // when it was first delivered, in milliseconds; zero: now
	Attempts      int         // how often its operation has failed
	Postponements int         // how often it was postponed
}

// longestNote is more bytes than String writes.
const longestNote = 256

// String returns the note as words name=value.
func (n Note) String() string {
	b := make([]byte, 0, 128)
	number := func(name string, v int64) {
		if v > 0 {
			b = strconv.AppendInt(append(append(b, name...), '='), v, 10)
			b = append(b, ' ')
		}
	}
	if !n.Due.IsZero() {
		number("due", n.Due.UnixMicro())
	}
	if !n.First.IsZero() {
		number("first", n.First.UnixMilli())
	}
	number("postponements", int64(n.Postponements))
	number("attempts", int64(n.Attempts))
	if !n.Ticket.IsZero() {
		b = fmt.Append(b, "ticket=", n.Ticket)
	}
	return strings.TrimSuffix(string(b), " ")
}

// ParseNote reads the text of String. It trusts nothing: it returns the note of a new message for a text that is not a
// note or contains impossible times. A forged note moves its message before others of its entity at most, and never
// over the limit.
func ParseNote(text string) Note {
	now := time.Now().Truncate(time.Millisecond)
	fresh := Note{First: now}
	if text == "" || len(text) > longestNote {
		return fresh
	}
	n := fresh
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		if name == "ticket" {
			var err error
			if n.Ticket, err = drip.ParseTicket(value); err != nil {
				return fresh
			}
			continue
		}
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil || v < 0 {
			return fresh
		}
		switch name {
		case "due":
			n.Due = time.UnixMicro(v)
		case "first":
			n.First = time.UnixMilli(v)
		case "postponements":
			n.Postponements = int(min(v, math.MaxInt32))
		case "attempts":
			n.Attempts = int(min(v, math.MaxInt32))
		default:
			return fresh
		}
	}
	if n.First.After(now) { // clocks of two processes differ
		n.First = now
	}
	if n.Due.After(now.Add(longestDelay + 24*time.Hour)) { // clocks differ here, too
		return fresh
	}
	return n
}

// Age returns the time since the message was first delivered, 0 for a zero First.
func (n Note) Age() time.Duration {
	if n.First.IsZero() {
		return 0
	}
	return max(0, time.Since(n.First))
}
