package postgres_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// serverClock stands in for the server's clock: sessions whose search_path names it first find its clock_timestamp. It
// stands still, or runs beside the real one.
type serverClock struct {
	t    *testing.T
	pool *pgxpool.Pool // of sessions with this clock
	set  string
}

func newServerClock(t *testing.T) *serverClock {
	t.Helper()
	schema := newSchema()
	pool := sharedPool(t)
	name := pgx.Identifier{schema}.Sanitize()
	exec(t, pool, schema, `create schema `+name+`;
		create table drip.clock (stands timestamptz, ahead interval);
		insert into drip.clock values ('2026-01-01T00:00:00Z', null);
		create function drip.clock_timestamp() returns timestamptz volatile language sql as
			'select coalesce(stands, pg_catalog.clock_timestamp() + ahead) from `+strings.ReplaceAll(name, "'", "''")+`.clock'`)
	return &serverClock{
		t:    t,
		pool: newPool(t, servers.UsePostgres(t).URL(), 4, "search_path", name+", pg_catalog"),
		set:  in(schema, "update drip.clock set stands = $1, ahead = $2"),
	}
}

// stand makes the clock show that time after 2026 began.
func (c *serverClock) stand(at time.Duration) { c.update(year2026.Add(at), nil) }

// run makes it run, ahead of the real one by d.
func (c *serverClock) run(d time.Duration) { c.update(nil, d) }

func (c *serverClock) update(stands, ahead any) {
	c.t.Helper()
	if _, err := c.pool.Exec(context.Background(), c.set, stands, ahead); err != nil {
		c.t.Fatal(err)
	}
}

var year2026 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// grants counts how many of n calls run.
func grants(t *testing.T, s storage.Atomic, l *decision.Limits, n int) (granted int) {
	t.Helper()
	for range n {
		if getDelay(t, s, "shop", l) == 0 {
			granted++
		}
	}
	return granted
}

// Steady callers, from a tenth of the rate to twice that, for six seconds. All run who ask no more often than the rate
// allows; when more ask, what the rate allows runs, and nobody who is denied makes it less.
func TestSteadyCallers(t *testing.T) {
	t.Parallel()
	const seconds, rate = 6, 10
	clock := newServerClock(t)
	for _, burst := range []int64{1, 10} {
		for _, share := range []float64{0.1, 0.49, 0.5, 0.51, 0.9, 0.99, 1, 1.002, 1.1, 1.5, 2} { // of the rate
			if burst > 1 && share < 1 {
				continue // the bucket is never empty
			}
			s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema()})
			l := limits(burst, 1, 1000/rate)
			granted, calls := 0, int(share*rate*seconds)
			for i := range calls {
				clock.stand(time.Duration(math.Round(float64(i)/(share*rate)*1e6)) * time.Microsecond)
				granted += grants(t, s, l, 1)
			}
			intervals := int(float64(calls-1) / share) // since the first
			most := int(burst) + intervals
			least := min(calls, intervals+1)
			if granted > most || float64(granted) < 0.99*float64(least) {
				t.Errorf("%v of the rate, bursts of %d: %d of %d granted, want %d to %d", share, burst, granted, calls, least, most)
			}
		}
	}
}

// The clock that a process remembers is no other than the server's, whatever that does.
func TestServerClockSteps(t *testing.T) {
	clock := newServerClock(t)
	s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema()})
	l := limits(1, 1, 60_000)
	granted := func(what string, want int) {
		t.Helper()
		if got := grants(t, s, l, 5); got != want {
			t.Errorf("%s: %d of 5 granted, want %d", what, got, want)
		}
	}
	for i, c := range []struct {
		ahead time.Duration
		want  int
	}{
		{0, 1}, {0, 0}, {time.Hour, 1}, {time.Hour + time.Minute, 1}, {time.Hour + 3*time.Minute, 1}, {0, 0}, {time.Hour, 0},
		{time.Hour + 2*time.Minute, 0}, {time.Hour + 4*time.Minute, 1}, {-time.Hour, 0}, {24 * time.Hour, 1},
	} {
		now := time.Now() // somewhere in the middle of a minute, so that none ends meanwhile
		clock.run(c.ahead + now.Truncate(time.Minute).Add(20*time.Second).Sub(now))
		granted(fmt.Sprintf("step %d, %v ahead", i, c.ahead), c.want)
	}
}

// A lease that is stored late was not given for a time that is over.
func TestShortLease(t *testing.T) {
	clock := newServerClock(t)
	s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema()})
	l := limits(1_000_000, 1_000_000, 3_600_000)
	l.Tokens, l.Lease = 1, 500
	clock.stand(0)
	for range 3 {
		do(t, s, "shop", l, decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: do(t, s, "shop", l, one).Lease})
	}
	clock.stand(900 * time.Millisecond) // the storage's clock is behind now
	a, b := do(t, s, "shop", l, one), do(t, s, "shop", l, one)
	if a.Delay == 0 && b.Delay == 0 {
		t.Errorf("the only token is out twice: %+v, %+v", a.Lease, b.Lease)
	}
}

// A decision counts in the interval in which it is stored, however long that takes: what was decided in another one is
// decided again.
func TestStoredInItsInterval(t *testing.T) {
	const insert = "insert into drip.entity (key, revision, expires, callers_clock, decided, until, leases, first_end, last_end, data) " +
		"values ('shop', 1, 0, false, 0, 0, 0, 0, 0, '')"
	for _, c := range []struct {
		name, sql  string // what somebody else does
		commit     bool
		own, other int // how many have run before, of this process and of another
	}{
		{"changed", "update drip.entity set expires = expires + 1", true, 3, 0},
		{"not changed", "update drip.entity set expires = expires + 1", false, 3, 0},
		{"locked", "select from drip.entity for no key update", true, 3, 0},
		{"changed, of several", "update drip.entity set expires = expires + 1", true, 3, 1},
		{"not changed, of several", "update drip.entity set expires = expires + 1", false, 3, 1},
		{"locked, of several", "select from drip.entity for no key update", true, 3, 1},
		{"changed by another", "update drip.entity set expires = expires + 1", true, 0, 1},
		{"locked by another", "select from drip.entity for no key update", true, 0, 1},
		{"made", insert, true, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newServerClock(t)
			o := postgres.Options{Schema: newSchema()}
			s, other := newStorageWith(t, clock.pool, o), newStorageWith(t, clock.pool, o)
			l := limits(5, 5, 60_000)
			clock.stand(59*time.Second + 900*time.Millisecond)
			do(t, s, "nobody", l, decision.Op{Kind: decision.ReturnToken}) // it reads, which tells the time
			if n := grants(t, s, l, c.own) + grants(t, other, l, c.other); n != c.own+c.other {
				t.Fatalf("%d granted", n)
			}
			// Somebody has the row, and it is a new minute, of which all has run, when it comes free.
			tx := begin(t, sharedPool(t), o.Schema, c.sql)
			defer func() { _ = tx.Rollback(context.Background()) }()
			got := make(chan time.Duration)
			go func() {
				d, err := ask(context.Background(), s, "shop", l)
				if err != nil {
					t.Error(err)
				}
				got <- d
			}()
			waiting(t, clock.pool)
			clock.stand(60*time.Second + 100*time.Millisecond)
			if c.commit {
				ok(t, tx.Commit(t.Context()))
			} else {
				ok(t, tx.Rollback(t.Context()))
			}
			if d := <-got; d != 0 {
				t.Errorf("GetDelay = %v", d)
			}
			e := read(t, s, "shop")
			if want := year2026.Add(60*time.Second + 100*time.Millisecond).UnixMilli(); e.State.Now != want || e.State.Lines[0].Left != 4 {
				t.Errorf("it was counted at %d, which left %d; want %d and 4", e.State.Now, e.State.Lines[0].Left, want)
			}
		})
	}
}

// waiting returns when a session of the pool's user waits for a row.
func waiting(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually(t, "somebody waits for a lock", func() bool {
		return query[bool](t, pool, "", "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and query like '%entity%')")
	})
}

type step struct {
	at             float64 // seconds
	calls, granted int
}

// Rows are kept as long as they say anything that a new one would not.
func TestExpiry(t *testing.T) {
	const day = 24 * time.Hour
	month := *limits(2, 2, (30 * day).Milliseconds())
	monthly := limits(2, 2, 1000)
	monthly.Windows = append(monthly.Windows, decision.Window{Size: 4, Rate: 4, Interval: (30 * day).Milliseconds()})
	monthly.Ready()
	tokens := limits(10, 10, 1000)
	tokens.Tokens = 1
	for _, c := range []struct {
		name  string
		l     *decision.Limits
		steps []step
		pause time.Duration
	}{
		{"a token whose holder died is back after MaxHold", tokens, []step{{calls: 3, granted: 1}, {at: 3590, calls: 3}, {at: 3601, calls: 3, granted: 1}}, 0},
		{"but not what has run in a month", &month, []step{{calls: 3, granted: 2}, {at: 2 * day.Seconds(), calls: 3}}, 0},
		{"nor in a further window", monthly, []step{{calls: 3, granted: 2}, {at: 7200, calls: 3, granted: 2}, {at: 2 * day.Seconds(), calls: 3}}, 0},
		{"nor that it is closed", tokens, []step{{at: 7200, calls: 1}, {at: 2 * day.Seconds(), calls: 1}, {at: 4 * day.Seconds(), calls: 2, granted: 1}}, 3 * day},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := newServerClock(t)
			s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema(), MaxHold: time.Hour})
			clock.stand(0)
			if c.pause > 0 {
				getDelay(t, s, "shop", c.l)
				do(t, s, "shop", c.l, decision.Op{Kind: decision.Pause, For: c.pause.Milliseconds()})
			}
			for _, st := range c.steps {
				clock.stand(time.Duration(st.at * float64(time.Second)))
				ok(t, s.DeleteIdle(t.Context()))
				if got := grants(t, s, c.l, st.calls); got != st.granted {
					t.Errorf("at %vs: %d of %d calls granted, want %d", st.at, got, st.calls, st.granted)
				}
			}
		})
	}
	// By the server's clock a simulation's times are long over. It is kept all the same.
	clock := newServerClock(t)
	s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema(), MaxHold: time.Hour})
	clock.stand(0)
	at := func(ms int64) decision.Answer {
		a, err := s.Do(t.Context(), "shop", monthly, nil, decision.Op{Kind: decision.GetDelay, Now: ms})
		ok(t, err)
		return a
	}
	for i := range int64(4) {
		if a := at(1_500_000_000_000 + 1000*i); a.Delay != 0 {
			t.Errorf("run %d is postponed by %d ms", i, a.Delay)
		}
	}
	for _, days := range []time.Duration{1, 20} {
		clock.stand(days * day)
		if a := at(1_500_000_010_000); a.Delay == 0 {
			t.Errorf("after %d days the month was forgotten", days)
		}
	}
}

// A process whose clock is behind the server's does not open an entity early: a span begins at the server's time. It
// admits no operation that is late, and none by a pin that has ended.
func TestSpansAreByTheServersTime(t *testing.T) {
	start := func(first ...decision.Op) (shop func(decision.Op) decision.Answer, s *postgres.Storage) {
		clock := newServerClock(t)
		s = newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema()})
		l := limits(10, 10, 3_600_000)
		l.Tokens = 1
		shop = func(op decision.Op) decision.Answer { return do(t, s, "shop", l, op) }
		clock.stand(0)
		for range 2 {
			shop(decision.Op{Kind: decision.GetDelay})
			shop(decision.Op{Kind: decision.ReturnToken})
		}
		for _, op := range first {
			shop(op)
		}
		clock.stand(900 * time.Millisecond) // the storage's clock is behind by this
		return shop, s
	}
	shop, s := start()
	shop(decision.Op{Kind: decision.Throttle, For: 1000})
	e := read(t, s, "shop")
	if closed := e.State.Closed - e.Time.UnixMilli(); closed < 1000 {
		t.Errorf("the entity is closed for %d ms, want 1000", closed)
	}
	shop, _ = start()
	late := one
	late.Deadline = year2026.UnixMilli() + 400
	if a := shop(late); !a.Late {
		t.Errorf("500 ms after the deadline: %+v", a)
	}
	shop, _ = start(decision.Op{Kind: decision.Pin, For: 500, Pin: &decision.PinnedLimit{Tokens: 2, Raise: 1}}, one)
	if a := shop(one); a.Lease.ID != 0 {
		t.Errorf("a second operation after the end of the pin: %+v", a)
	}
}

// A token whose holder died is back after MaxHold, also if the callers give the time and go on asking.
func TestTokensOfTheDeadByTheCallersClock(t *testing.T) {
	clock := newServerClock(t)
	s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema(), MaxHold: time.Hour})
	l := limits(10, 10, 1000)
	l.Tokens = 1
	for minute := 0; minute <= 180; minute += 20 {
		clock.stand(time.Duration(minute) * time.Minute)
		now := year2026.UnixMilli() + int64(minute)*60_000 + 50 // a caller's clock is a little ahead
		a, err := s.Do(t.Context(), "shop", l, nil, decision.Op{Kind: decision.GetDelay, Now: now})
		ok(t, err)
		if runs := a.Delay == 0; runs != (minute%60 == 0) {
			t.Errorf("after %d minutes: %+v", minute, a)
		}
	}
}
