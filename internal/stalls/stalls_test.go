package stalls

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Stalls{last: time.Now()}
		at := func(d time.Duration) time.Time { return s.all[0].from.Add(d) }
		for _, d := range []time.Duration{5, 100, 15, 5, 40} { // late by 0, 95, 10, 0 and 35 ms
			time.Sleep(d * time.Millisecond)
			s.woke(time.Now())
		}
		for _, c := range []struct{ from, to, want time.Duration }{
			{-time.Hour, time.Hour, 130 * time.Millisecond},
			{20 * time.Millisecond, 90 * time.Millisecond, 70 * time.Millisecond},
			{-time.Second, 0, 0},
			{95 * time.Millisecond, 115 * time.Millisecond, 0},
		} {
			if got := s.Between(at(c.from), at(c.to)); got != c.want {
				t.Errorf("from %v to %v the machine stalled for %v, want %v", c.from, c.to, got, c.want)
			}
		}
		time.Sleep(time.Second)
		if got := s.Between(time.Now().Add(-time.Second), time.Now()); got != time.Second-tick {
			t.Errorf("before the goroutine wakes up again: %v", got)
		}
	})
}
