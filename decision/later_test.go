package decision

import "testing"

// A day is not used up at the end of the calendar if the hour of that time lets less than the day through. So a place there is
// moved to the next hour, not to the next day.
func TestLater(t *testing.T) {
	const hour, day, now = 3_600_000, 86_400_000, 20_000 * 86_400_000
	l := &Limits{
		Windows: []Window{
			{Size: 10, Rate: 10, Interval: 1000}, {Size: 100, Rate: 100, Interval: hour}, {Size: 500, Rate: 500, Interval: day},
		},
		Tokens: 1000, Guess: 50, Lease: 1000, MaxLease: 1000,
	}
	if field, _ := l.Ready(); field != "" {
		t.Fatal(field)
	}
	x := &Shared{Limits: l, State: &State{}, Leases: counted(0), Weight: 1}
	x.advance(now)
	x.enter(&Flow{}, &Op{Kind: Admit, Cost: Cost{1}})
	for _, c := range []struct{ from, span, want int64 }{ // in seconds from now on
		{1, 5, 6},
		{1, 15, 3605},          // the hour lasts 10 s
		{1024, 0, 3600},        // the end of the calendar: the hour is used up
		{1024, 35, 4*3600 + 5}, // as do the next ones
		{1024, 45, 86_405},     // the fifth hour uses up the day
	} {
		if got := x.later((now/1000+c.from)*tick, c.span*tick)/tick - now/1000; got != c.want {
			t.Errorf("%d s behind %d it is %d, want %d", c.span, c.from, got, c.want)
		}
	}
}

// A place far behind the calendar counts no numbers that are too large: a window of two seconds that is never short leaves the time to the
// longest one, which is used up after 50 s.
func TestLaterBesideALargeWindow(t *testing.T) {
	const now = int64(20_000 * 86_400_000)
	longest := Window{Size: 500, Rate: 500, Interval: MostTime}
	l := &Limits{
		Windows: []Window{{Size: 10, Rate: 10, Interval: 1000}, {Size: MostUnits, Rate: MostUnits, Interval: 2000}, longest},
		Tokens:  1000, Guess: 50, Lease: 1000, MaxLease: 1000,
	}
	if field, _ := l.Ready(); field != "" {
		t.Fatal(field)
	}
	x := &Shared{Limits: l, State: &State{}, Leases: counted(0), Weight: 1}
	x.advance(now)
	x.enter(&Flow{}, &Op{Kind: Admit, Cost: Cost{1}})
	for _, from := range []int64{100, 9_000_000, 20_000_000, 90_000_000} { // seconds from now on
		if got, want := x.later((now/1000+from)*tick, 0)/tick, l.whole(longest.Next(now)); got != want {
			t.Errorf("behind %d s it is %d, want %d", from, got, want)
		}
	}
}
