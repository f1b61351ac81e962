package limiter

import (
	"math"
	"time"
)

// An instant is a time in milliseconds since 1970, plus attoseconds, fewer than a millisecond has. The limiter counts
// in time, and with so fine a unit its rounding does not matter: at three units a second three single units take a
// second, and at 3e9 a unit still takes some time.
type instant struct{ ms, as int64 }

const asPerMs = 1e15

func at(t time.Time) instant {
	return instant{t.UnixMilli(), int64(t.Nanosecond()) % 1e6 * 1e9}
}

// after returns the instant so many seconds after i; they are at most mostSeconds either way.
func (i instant) after(seconds float64) instant {
	whole, rest := math.Modf(seconds)
	return instant{i.ms + 1000*int64(whole), i.as + int64(math.Round(rest*1000*asPerMs))}.normal()
}

func (i instant) before(d time.Duration) instant {
	return instant{i.ms - d.Milliseconds(), i.as - int64(d%time.Millisecond)*1e9}.normal()
}

// sub returns the time from o to i in whole nanoseconds, or the longest Duration. The instants keep the rounded part.
func (i instant) sub(o instant) time.Duration {
	const most = math.MaxInt64/1_000_000 - 1
	ms := i.ms - o.ms
	if ms > most {
		return math.MaxInt64
	}
	if ms < -most {
		return -math.MaxInt64
	}
	return time.Duration(ms*1e6 + floor(i.as-o.as+5e8, 1e9))
}

// seconds returns the time from o to i.
func (i instant) seconds(o instant) float64 {
	return float64(i.ms-o.ms)/1000 + float64(i.as-o.as)/1000/asPerMs
}

func later(i, o instant) instant {
	if i.ms < o.ms || i.ms == o.ms && i.as < o.as {
		return o
	}
	return i
}

func (i instant) normal() instant {
	ms := floor(i.as, asPerMs)
	return instant{i.ms + ms, i.as - ms*asPerMs}
}

// floor divides, rounding down.
func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
