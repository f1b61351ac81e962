package drip_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
)

// clocked is a bucket whose time the test sets.
type clocked struct {
	*drip.Bucket
	t   *testing.T
	now time.Time
}

var noon = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// eachPath makes a bucket on each path: beside the data, and through Get and Set.
func eachPath(t *testing.T, o drip.Options, test func(t *testing.T, b *clocked)) {
	for name, open := range storages {
		t.Run(name, func(t *testing.T) {
			c := &clocked{t: t, now: noon}
			o := o
			o.Storage, o.Start, o.Clock = open(t), time.Unix(0, 0), func() time.Time { return c.now }
			c.Bucket = buckettest.New(t, o)
			test(t, c)
		})
	}
}

func (c *clocked) admit(cost int, ticket drip.Ticket) drip.Admission {
	c.t.Helper()
	a, err := c.Admit(context.Background(), "shop", drip.Request{Cost: cost, Ticket: ticket})
	ok(c.t, err)
	return a
}

func (c *clocked) runs(cost int, ticket drip.Ticket) drip.Lease {
	c.t.Helper()
	a := c.admit(cost, ticket)
	if a.Delay != 0 {
		c.t.Fatalf("a cost of %d is postponed by %v because of %v", cost, a.Delay, a.Bound)
	}
	return a.Lease
}

func (c *clocked) waits(cost int, ticket drip.Ticket, delay time.Duration, bound drip.Bound) drip.Ticket {
	c.t.Helper()
	a := c.admit(cost, ticket)
	if a.Delay != delay || a.Bound != bound {
		c.t.Fatalf("a cost of %d is postponed by %v because of %v, want %v because of %v", cost, a.Delay, a.Bound, delay, bound)
	}
	return a.Ticket
}

func (c *clocked) settle(l drip.Lease, cost int, want error) {
	c.t.Helper()
	if err := c.Settle(context.Background(), "shop", l, cost); !errors.Is(err, want) {
		c.t.Fatalf("Settle = %v, want %v", err, want)
	}
}

func (c *clocked) pass(d time.Duration) { c.now = c.now.Add(d) }

var newcomer drip.Ticket

func TestCostThatNeverFits(t *testing.T) {
	eachPath(t, drip.Options{Size: 10, Windows: []drip.Window{{Size: 7, RefreshInterval: time.Minute}}}, func(t *testing.T, b *clocked) {
		for _, cost := range []int{-1, 8, 11} {
			if _, err := b.Admit(t.Context(), "shop", drip.Request{Cost: cost}); !errors.Is(err, drip.ErrCost) || !strings.Contains(err.Error(), "shop") {
				t.Errorf("Admit of %d = %v, want ErrCost", cost, err)
			}
		}
		b.runs(7, newcomer)
	})
}

// A token whose holder has died is back when the lease ends; its late settlement changes nothing.
func TestLeasesEnd(t *testing.T) {
	eachPath(t, drip.Options{Size: 100, RefreshRate: 100, Concurrency: 2, Lease: 10 * time.Second, MaxLease: 25 * time.Second}, func(t *testing.T, b *clocked) {
		dead, alive := b.runs(1, newcomer), b.runs(1, newcomer)
		for range 2 {
			b.pass(9 * time.Second)
			var err error
			if alive, err = b.Renew(t.Context(), "shop", alive); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := b.Inspect(t.Context(), "shop"); err != nil || s.InUse != 1 || len(s.Leases) != 1 || s.Leases[0].Age != 18*time.Second {
			t.Errorf("Inspect = %+v, %v", s, err)
		}
		if _, err := b.Renew(t.Context(), "shop", dead); !errors.Is(err, drip.ErrNoLease) {
			t.Errorf("Renew of a lease that has ended = %v", err)
		}
		b.runs(1, newcomer)
		b.settle(dead, 1, drip.ErrNoLease)
		if a := b.admit(1, newcomer); a.Bound != drip.BoundTokens {
			t.Errorf("a late settlement has made a third token: %+v", a)
		}
		b.pass(7 * time.Second)
		if _, err := b.Renew(t.Context(), "shop", alive); !errors.Is(err, drip.ErrNoLease) {
			t.Errorf("Renew after MaxLease = %v", err)
		}
	})
}

func TestThrottled(t *testing.T) {
	eachPath(t, drip.Options{Size: 10, RefreshRate: 5}, func(t *testing.T, b *clocked) {
		b.runs(10, newcomer)
		booked := b.waits(1, newcomer, time.Second, drip.BoundWindow)
		ok(t, b.Throttled(t.Context(), "shop", 30*time.Second))
		b.pass(time.Second)
		again := b.admit(1, booked)
		if again.Delay < 29*time.Second || again.Delay >= 30*time.Second || again.Bound != drip.BoundClosed {
			t.Errorf("a ticket that came back is postponed by %v because of %v, want 29s to 30s because of closed", again.Delay, again.Bound)
		}
		booked = again.Ticket
		b.waits(5, newcomer, 31*time.Second, drip.BoundClosed)
		if d, err := b.GetDelay(t.Context(), "shop"); err != nil || d < 29*time.Second {
			t.Errorf("GetDelay = %v, %v", d, err)
		}
		buckettest.Runs(t, b, "other", drip.Request{}) // another entity
		b.pass(28 * time.Second)
		if a := b.admit(1, newcomer); a.Delay == 0 {
			t.Error("it is open before its time")
		}
		b.pass(time.Second)
		b.runs(1, booked)
		if a := b.admit(5, newcomer); a.Delay == 0 {
			t.Error("what it had gathered is not gone")
		}
		ok(t, b.Pause(t.Context(), "shop", time.Hour))
		b.pass(time.Minute)
		if a := b.admit(1, newcomer); a.Delay < 59*time.Minute || a.Bound != drip.BoundClosed {
			t.Errorf("while it is paused for 59 minutes more: %+v", a)
		}
		ok(t, b.Resume(t.Context(), "shop"))
		b.runs(1, newcomer)
	})
}

// A pause of no time is a mistake. It changes nothing.
func TestPauseOfNoTime(t *testing.T) {
	b := buckettest.New(t, drip.Options{Start: time.Unix(0, 0)})
	for _, d := range []time.Duration{0, -time.Second} {
		if err := b.Pause(t.Context(), "shop", d); err == nil || !strings.Contains(err.Error(), `"shop"`) {
			t.Errorf("Pause for %v: %v", d, err)
		}
	}
	buckettest.Runs(t, b, "shop", drip.Request{})
}

// A limit that changes holds from the next decision on, also for a thousand tickets that are out.
func TestLimitsChange(t *testing.T) {
	limit := drip.Limit{Size: 10, RefreshRate: 10}
	eachPath(t, drip.Options{Concurrency: 10_000, Limits: func(_ context.Context, entity string) (drip.Limit, error) {
		if entity == "unknown" {
			return drip.Limit{}, errors.New("no such shop")
		}
		return limit, nil
	}}, func(t *testing.T, b *clocked) {
		limit = drip.Limit{Size: 10, RefreshRate: 10}
		b.runs(10, newcomer)
		type out struct {
			due    time.Time
			ticket drip.Ticket
		}
		var waiting []out
		for range 1000 {
			a := b.admit(1, newcomer)
			waiting = append(waiting, out{b.now.Add(a.Delay), a.Ticket})
		}
		if last := waiting[999].due.Sub(b.now); last != 100*time.Second {
			t.Fatalf("the last of 1000 at 10 a second is told %v", last)
		}
		limit = drip.Limit{Size: 4, RefreshRate: 4}
		ran, redelivered := map[int64]int{}, 0
		for len(waiting) > 0 {
			next := 0
			for i := range waiting {
				if waiting[i].due.Before(waiting[next].due) {
					next = i
				}
			}
			b.now = waiting[next].due
			a := b.admit(1, waiting[next].ticket)
			if a.Delay > 0 {
				waiting[next] = out{b.now.Add(a.Delay), a.Ticket}
				redelivered++
				continue
			}
			ran[b.now.Unix()]++
			waiting = append(waiting[:next], waiting[next+1:]...)
		}
		for second, n := range ran {
			if n > 4 {
				t.Errorf("in second %d ran %d, 4 may", second, n)
			}
		}
		if took := b.now.Sub(noon); took > 251*time.Second {
			t.Errorf("1000 at 4 a second took %v", took)
		}
		t.Logf("%.2f redeliveries a message", float64(redelivered)/1000)
		if _, err := b.Admit(t.Context(), "unknown", drip.Request{}); err == nil || !strings.Contains(err.Error(), "no such shop") {
			t.Errorf("Admit = %v, want the error of Limits", err)
		}
		limit = drip.Limit{Size: -1}
		if _, err := b.Admit(t.Context(), "shop", drip.Request{}); err == nil || !strings.Contains(err.Error(), "Limit.Size") {
			t.Errorf("Admit = %v, want an error that names Limit.Size", err)
		}
	})
}

func TestShare(t *testing.T) {
	eachPath(t, drip.Options{Size: 100, RefreshRate: 100, Concurrency: 100, Share: 0.29}, func(t *testing.T, b *clocked) {
		b.runs(29, newcomer)
		b.waits(1, newcomer, time.Second, drip.BoundWindow)
	})
	if _, err := drip.New(drip.Options{Size: 10, RefreshRate: 1, Share: 0.5}); err == nil || !strings.Contains(err.Error(), "Share") {
		t.Errorf("New with a share of nothing = %v", err)
	}
}

// Inspect documents the number that means any number.
func TestShareOfAnyNumber(t *testing.T) {
	b, err := drip.New(drip.Options{Size: 10, Unit: "points", Share: 0.5, Shared: map[string]drip.Limit{"tokens": {Concurrency: 4}}})
	ok(t, err)
	s, err := b.Inspect(t.Context(), "shop")
	if err != nil || s.Concurrency != 1<<40 {
		t.Errorf("half of any number of tokens is %d, %v", s.Concurrency, err)
	}
	s, err = b.Inspect(t.Context(), drip.SharedID("tokens"))
	if err != nil || s.Concurrency != 2 || s.Windows[0].Size != 1<<40 || s.Windows[0].RefreshRate != 1<<40 {
		t.Errorf("half of a limit of tokens alone is %+v, %v", s, err)
	}
}

// Inspect predicts the next answer of Admit to a newcomer, whatever has happened before.
func TestInspectAgreesWithAdmit(t *testing.T) {
	eachPath(t, drip.Options{Size: 5, RefreshRate: 2, Concurrency: 2, Lease: 3 * time.Second, Windows: []drip.Window{{Size: 20, RefreshInterval: time.Minute}}}, func(t *testing.T, b *clocked) {
		rnd := rand.New(rand.NewPCG(1, 2))
		var leases []drip.Lease
		for i := range 2000 {
			b.pass(time.Duration(rnd.IntN(700)) * time.Millisecond)
			s := buckettest.Inspect(t, b, "shop")
			a := b.admit(1, newcomer)
			if a.Delay != s.Delay || a.Bound != s.Bound {
				t.Fatalf("step %d: Inspect says %+v, Admit %+v", i, s, a)
			}
			if a.Delay == 0 {
				leases = append(leases, a.Lease)
			} else if rnd.IntN(2) == 0 {
				b.pass(a.Delay)
				b.admit(1, a.Ticket)
			}
			if len(leases) > 0 && rnd.IntN(2) == 0 {
				_ = b.Settle(t.Context(), "shop", leases[0], rnd.IntN(3))
				leases = leases[1:]
			}
		}
	})
}

// The answer that Inspect predicts for the end of a pause is its answer at that end, if nothing has changed in between.
func TestInspectAgreesWithTheOpening(t *testing.T) {
	eachPath(t, drip.Options{Size: 5, RefreshRate: 2, Concurrency: 3, WaitForToken: 3 * time.Second, Lease: time.Hour, Windows: []drip.Window{{Size: 6, RefreshInterval: 5 * time.Second}}}, func(t *testing.T, b *clocked) {
		rnd := rand.New(rand.NewPCG(3, 4))
		var leases []drip.Lease
		agreed := map[drip.Bound]int{}
		for i := range 1000 {
			b.pass(time.Duration(rnd.IntN(3000)) * time.Millisecond)
			for range rnd.IntN(5) {
				if a := b.admit(1, newcomer); a.Delay == 0 {
					leases = append(leases, a.Lease)
				} else if rnd.IntN(4) == 0 {
					b.admit(1, a.Ticket)
				}
			}
			if rnd.IntN(2) == 0 {
				for _, l := range leases {
					_ = b.Settle(t.Context(), "shop", l, rnd.IntN(3))
				}
				leases = nil
			}
			shut := b.Pause
			if rnd.IntN(8) == 0 {
				shut = b.Throttled
			}
			ok(t, shut(t.Context(), "shop", time.Duration(1+rnd.IntN(900))*time.Millisecond))
			before := buckettest.Inspect(t, b, "shop")
			later := before.Delay > before.ClosedUntil.Sub(before.Time)
			if !later && before.Then != drip.BoundNone {
				t.Fatalf("step %d: Inspect says %+v", i, before)
			}
			b.pass(before.ClosedUntil.Sub(before.Time))
			after := buckettest.Inspect(t, b, "shop")
			if !later {
				continue
			}
			if after.Bound != before.Then && after.Bound != drip.BoundNone {
				t.Fatalf("step %d: while it was closed, Inspect says %+v, then %+v", i, before, after)
			}
			agreed[after.Bound]++
		}
		for _, bound := range []drip.Bound{drip.BoundTokens, drip.BoundBooked, drip.BoundWindow} {
			if agreed[bound] < 3 {
				t.Errorf("%v came up %d times", bound, agreed[bound])
			}
		}
		t.Log(agreed)
	})
}

func TestTicketText(t *testing.T) {
	o := drip.Options{Size: 1, RefreshRate: 1, Shared: map[string]drip.Limit{"app": {Size: 1}, "orders": {Size: 1}}}
	eachPath(t, o, func(t *testing.T, b *clocked) {
		for _, urgent := range []bool{false, true} {
			b.pass(time.Minute)
			b.runs(1, newcomer)
			ticket := buckettest.Admit(t, b, "shop", drip.Request{Urgent: urgent}).Ticket
			back, err := drip.ParseTicket(ticket.String())
			if err != nil || back != ticket || ticket.IsZero() || !ticket.Slot().Equal(b.now.Add(time.Second)) {
				t.Errorf("%v became %v, %v", ticket, back, err)
			}
			ok(t, b.Cancel(t.Context(), "shop", drip.Admission{Ticket: back}))
		}
	})
	const longest = "4.8796093022207.8796093022207.1.1099511627776.1099511627776.1099511627776.1099511627776.1.ffffffffffffffff"
	for _, text := range []string{"4.1700000000000.1.0.1.600.50.0.0.1", longest} {
		if got, err := drip.ParseTicket(text); err != nil || got.String() != text {
			t.Errorf("ParseTicket(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"x", "3.2.3", "1.1.1.1.1.1.1", "3.0.1.1.1.1.1", "3.1.-1.1.1.1.1", "3.1.1.3.1.1.1", "3.1.1.1.-1.1.1", "3.1.1.1.1.2.1", "3.1.1.1.1.1.1x", "3.1.1.1.1.1.99999999999999999999",
		" 3.1.1.1.1.1.1", "3.1.1.-1.1.1.1", "3.1.1.1.1.-1.1", "3.1.1.1.1099511627777.1.1", "3.9007199254740993.1.1.1.1.1", "3.1.1.1.1.1.1" + strings.Repeat(" ", 200),
		"4.1700000000000.1.0.1.600.50.0.0", "4.1700000000000.1.0.1.-6.50.0.0.1", "4.1700000000000.1.0.1.6.50.0.0.1x", "5.1700000000000.1.0.1.6.50.0.0.1",
	} {
		if got, err := drip.ParseTicket(text); err == nil || !got.IsZero() {
			t.Errorf("ParseTicket(%q) = %v, %v", text, got, err)
		}
	}
	long := "3." + strings.Repeat("1", 1<<20)
	if n := testing.AllocsPerRun(1, func() { _, _ = drip.ParseTicket(long) }); n > 0 {
		t.Errorf("ParseTicket of a megabyte allocates %v times, so it reads it", n)
	}
	if got, err := drip.ParseTicket(""); err != nil || !got.IsZero() {
		t.Errorf("ParseTicket of nothing = %v, %v", got, err)
	}
}

// The text of a ticket is one also if its slot is centuries ahead, because the entity owes so much.
func TestFarTicketText(t *testing.T) {
	eachPath(t, drip.Options{Size: 10, RefreshRate: 10, Concurrency: 100}, func(t *testing.T, b *clocked) {
		b.settle(b.runs(1, newcomer), decision.MostUnits, nil)
		ticket := b.admit(1, newcomer).Ticket
		if back, err := drip.ParseTicket(ticket.String()); err != nil || back != ticket || ticket.Slot().UnixMilli() < decision.LastTime {
			t.Errorf("%v became %v, %v", ticket, back, err)
		}
	})
}

// A forged ticket, whose slot never comes, does not hold up the other operations of its entity.
func TestForgedFarTicket(t *testing.T) {
	eachPath(t, drip.Options{Size: 9, RefreshRate: 9, Shared: map[string]drip.Limit{"app": {Size: 1}}}, func(t *testing.T, b *clocked) {
		b.runs(1, newcomer)
		b.admit(1, newcomer)
		b.admit(1, newcomer)
		forged, err := drip.ParseTicket("3.9007199254740991.0.0.1.0.1")
		ok(t, err)
		b.admit(1, forged)
		b.pass(time.Second)
		if a := b.admit(1, newcomer); a.Delay > time.Minute {
			t.Errorf("a newcomer waits %v", a.Delay)
		}
	})
}

// Newcomers that come while the entity is closed are behind the booked operations. A limit that is lowered meanwhile
// does not close the entity for longer.
func TestClosed(t *testing.T) {
	limit := drip.Limit{Size: 20, RefreshRate: 10}
	options := drip.Options{Concurrency: 100, Limits: func(context.Context, string) (drip.Limit, error) { return limit, nil }}
	for name, closed := range map[string]func(b *clocked) error{
		"Pause":     func(b *clocked) error { return b.Pause(t.Context(), "shop", time.Hour) },
		"Throttled": func(b *clocked) error { return b.Throttled(t.Context(), "shop", time.Hour) },
	} {
		eachPath(t, options, func(t *testing.T, b *clocked) {
			limit = drip.Limit{Size: 20, RefreshRate: 10}
			b.settle(b.runs(20, newcomer), 20, nil)
			for range 100 {
				b.admit(1, newcomer)
			}
			if err := closed(b); err != nil {
				t.Fatal(name, err)
			}
			if a := b.admit(1, newcomer); a.Delay < time.Hour+8*time.Second || a.Delay > time.Hour+11*time.Second {
				t.Errorf("%s: behind 100 who are booked a newcomer is told %v", name, a.Delay)
			}
			b.pass(time.Minute)
			limit = drip.Limit{Size: 2, RefreshRate: 1}
			b.admit(1, newcomer)
			b.pass(time.Hour)
			if s, err := b.Inspect(t.Context(), "shop"); err != nil || s.Windows[0].Capacity < 1 {
				t.Errorf("%s: a minute after it is over there is %v, %v", name, s.Windows, err)
			}
		})
	}
}

// An operation that has to run again is in front of operations that have not run yet.
func TestPlaceIsKept(t *testing.T) {
	eachPath(t, drip.Options{Size: 1, RefreshRate: 1, Concurrency: 5}, func(t *testing.T, b *clocked) {
		failed := b.runs(1, newcomer)
		for range 50 {
			b.admit(1, newcomer)
		}
		b.settle(failed, 1, nil)
		b.pass(500 * time.Millisecond)
		again := b.waits(1, failed.Ticket(), 500*time.Millisecond, drip.BoundWindow)
		b.pass(500 * time.Millisecond)
		refused := b.runs(1, again)
		ok(t, b.Throttled(t.Context(), "shop", 10*time.Second))
		b.settle(refused, 1, nil)
		text, err := drip.ParseTicket(refused.Ticket().String())
		if err != nil || text != refused.Ticket() {
			t.Errorf("ParseTicket = %v, %v", text, err)
		}
		again = b.waits(1, text, 10*time.Second, drip.BoundClosed)
		b.pass(10 * time.Second)
		b.settle(b.runs(1, again), 1, nil)
		if (drip.Lease{}).Ticket() != newcomer {
			t.Error("no lease, and a ticket of it")
		}
	})
}

// After Throttled nothing runs before retryAfter is over, also if the refusal came within a millisecond.
func TestThrottledToTheMicrosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(900 * time.Microsecond)
		b := buckettest.New(t, drip.Options{})
		time.Sleep(time.Minute)
		ok(t, b.Throttled(t.Context(), "shop", 3*time.Second))
		time.Sleep(3*time.Second - time.Microsecond)
		a, err := b.Admit(t.Context(), "shop", drip.Request{})
		if err != nil || a.Delay == 0 {
			t.Errorf("a microsecond before the end Admit = %+v, %v, want a delay", a, err)
		}
		time.Sleep(a.Delay)
		if a, err = b.Admit(t.Context(), "shop", drip.Request{Ticket: a.Ticket}); err != nil || a.Delay != 0 {
			t.Errorf("after the end Admit = %+v, %v, want that it runs", a, err)
		}
		ok(t, b.Throttled(t.Context(), "shop", math.MaxInt64)) // a wait that no number of milliseconds holds is the longest
		if a := buckettest.Admit(t, b, "shop", drip.Request{}); a.Delay < 34*365*24*time.Hour {
			t.Errorf("throttled for ever, Admit = %+v", a)
		}
	})
}
