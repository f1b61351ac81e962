package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
)

// TestSwapsAreDecisions has processes that remember much, little or nothing take turns with entities and their shared limits,
// in random order. Their answers, the stored bytes and their expiry are the same as with decide.lua alone at the same time.
func TestSwapsAreDecisions(t *testing.T) {
	mini := miniredis.RunT(t)
	seed := cmp.Or(*seed, rand.Uint64())
	rnd := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	swaps, alone := 0, 0
	for n := *decisions / 30; n > 0 && !t.Failed(); {
		n -= compareProcesses(t, mini, rnd, &swaps, &alone)
	}
	t.Logf("%d calls, %d of them swaps", alone, swaps)
}

func compareProcesses(t *testing.T, mini *miniredis.Miniredis, rnd *rand.Rand, swaps, all *int) (n int) {
	mini.FlushAll()
	ctx := context.Background()
	client := goredis.NewClient(&goredis.Options{Addr: mini.Addr()})
	defer client.Close()
	open := func(prefix string, remember int) *Storage {
		s, err := New(client, Options{Prefix: prefix, Remember: remember, MaxHold: time.Duration(1+rnd.IntN(2)*3600) * time.Second})
		oktest.OK(t, err)
		return s
	}
	processes := []*Storage{open("a:", 0), open("a:", 2), open("a:", -1)}[:1+rnd.IntN(3)]
	want := open("b:", -1)
	for _, p := range processes {
		p.maxHold = want.maxHold
	}
	now := int64(1_790_000_000_000) + rnd.Int64N(1e9)
	limits := func() decision.Limits {
		l := randomLimits(rnd)
		if l.Start > now || l.Start < 0 {
			l.Start = now - rnd.Int64N(10_000)
		}
		return l
	}
	var within []storage.Within
	var shared []decision.Limits
	for range rnd.IntN(3) {
		shared = append(shared, limits())
	}
	for i := range shared {
		within = append(within, storage.Within{Key: fmt.Sprint("app", i), Limits: &shared[i], ID: int64(i + 1), Weight: 1 + int64(i)*3})
	}
	var entities []*comparison
	for i := range 1 + rnd.IntN(3) {
		c := &comparison{rnd: rnd, key: fmt.Sprint("shop", i), limits: limits()}
		for j := range shared {
			c.shared = append(c.shared, &comparison{rnd: rnd, key: within[j].Key, limits: shared[j]})
		}
		entities = append(entities, c)
	}
	var log []string
	for range 10 + rnd.IntN(60) {
		c := entities[rnd.IntN(len(entities))]
		if rnd.IntN(40) == 0 {
			c.limits = limits()
		}
		before := now
		switch rnd.IntN(40) {
		case 0:
			now -= rnd.Int64N(10_000)
		case 1:
			now += rnd.Int64N(1_000_000)
		default:
			now = max(now, min(step(rnd, &c.limits, now), now+100_000))
		}
		if now > before {
			mini.FastForward(time.Duration(now-before) * time.Millisecond)
		}
		op, with := c.op(rnd, now), within
		if rnd.IntN(4) > 0 {
			op.Now = decision.OwnClock
		}
		if n := rnd.IntN(6); n == 0 {
			with = nil
		} else if n == 1 && len(within) > 1 {
			with = within[1:]
		}
		if rnd.IntN(50) == 0 && len(within) > 0 {
			op, with = c.shared[0].pin(rnd, now), nil
			c = c.shared[0]
		}
		s := processes[rnd.IntN(len(processes))]
		mini.SetTime(time.UnixMicro(now*1000 + 1))
		l := s.lane(ctx, c.key)
		micros := now*1000 + 1
		if l.clock != nil {
			if rnd.IntN(30) > 0 {
				l.clock.Heard(micros, true)
			} else {
				l.clock.Heard(micros+rnd.Int64N(1e6)+1000, true) // ahead
			}
		}
		record := s.memoryOf(c.key)
		log = append(log, fmt.Sprintf("%d: %s %+v known %v", now, c.key, op, record))
		got, err1 := s.Do(ctx, c.key, &c.limits, with, op)
		exp, err2 := want.Do(ctx, c.key, &c.limits, with, op)
		*all++
		if record {
			*swaps++
		}
		n++
		fail := func(format string, args ...any) int {
			t.Errorf("%s", fmt.Sprintf(format, args...))
			for _, line := range log[max(0, len(log)-6):] {
				t.Log(line)
			}
			t.Logf("limits %+v within %+v %+v", c.limits, with, shared)
			return n
		}
		if got != exp || (err1 == nil) != (err2 == nil) {
			return fail("%+v, %v; want %+v, %v", got, err1, exp, err2)
		}
		if a := got; a.Lease.ID != 0 {
			c.leases = append(c.leases, a.Lease)
		}
		if a := got; a.Ticket.Number != 0 {
			c.tickets = append(c.tickets, a.Ticket)
		}
		for _, key := range append([]string{"app0", "app1"}, c.key) {
			a, err1 := s.Read(ctx, key)
			b, err2 := want.Read(ctx, key)
			x, y := storage.Encode(&a.State, alive(a.Leases, now)), storage.Encode(&b.State, alive(b.Leases, now))
			l := &c.limits
			for i := range c.shared {
				if c.shared[i].key == key {
					l = &c.shared[i].limits
				}
			}
			// While leases are out, decide.lua may count with the end of one that was given back, and keep the entity longer.
			kept := len(x) == 0 && len(alive(b.Leases, now)) == 0 && l.Until(&b.State) <= now
			if string(x) != string(y) && !kept || (err1 == nil) != (err2 == nil) {
				return fail("stored of %s %+v, %v; want %+v, %v", key, a, err1, b, err2)
			}
			if kept {
				continue
			}
			ttl, wantTTL := mini.TTL(s.keys(key)[0]), mini.TTL(want.keys(key)[0])
			until, wantUntil := untilOf(t, s, key), untilOf(t, want, key)
			if ttl > wantTTL || until > wantUntil || (ttl < wantTTL || until < wantUntil) && len(a.Leases) == 0 {
				return fail("%s is kept for %v until %d, want %v until %d", key, ttl, until, wantTTL, wantUntil)
			}
			for _, l := range a.Leases {
				if until < l.End {
					return fail("%s is kept until %d, but a lease until %d", key, until, l.End)
				}
			}
		}
	}
	return n
}

func untilOf(t *testing.T, s *Storage, key string) int64 {
	st, _, err := s.Get(context.Background(), key)
	oktest.OK(t, err)
	return st.Until
}

func (s *Storage) memoryOf(key string) bool {
	if s.memory == nil {
		return false
	}
	r := s.memory.Get(key)
	return r != nil && r.entity != nil
}

// behind is a process that knows the entity "shop", whose clock is behind the server's after step.
type behind struct {
	*Storage
	t    *testing.T
	mini *miniredis.Miniredis
	now  int64
	l    *decision.Limits
}

func newBehind(t *testing.T) *behind {
	mini := miniredis.RunT(t)
	client := goredis.NewClient(&goredis.Options{Addr: mini.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(client, Options{})
	oktest.OK(t, err)
	b := &behind{s, t, mini, 1_790_000_000_000, buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: 10, Rate: 10, Interval: 3_600_000}}, Tokens: 1, Guess: 50, Lease: 60_000, MaxLease: 60_000, Start: 1,
	})}
	mini.SetTime(time.UnixMilli(b.now))
	b.do(decision.Op{Kind: decision.GetDelay})
	b.do(decision.Op{Kind: decision.ReturnToken})
	return b
}

func (b *behind) do(op decision.Op) decision.Answer {
	b.t.Helper()
	return buckettest.Do(b.t, b, "shop", b.l, op)
}

// step moves the server's clock, and has the process believe that it shows 900 ms less: all answers have been slow so far.
func (b *behind) step(ms int64) {
	clock := b.lane(b.t.Context(), "shop").clock
	for !b.memoryOf("shop") {
		b.do(decision.Op{Kind: decision.Settle, Lease: decision.Lease{ID: 1}}) // which changes nothing
	}
	b.now += ms
	b.mini.SetTime(time.UnixMilli(b.now))
	clock.Heard((b.now-900)*1000, true)
}

// A process whose clock is behind the server's does not open an entity early: a span begins at the server's time.
func TestSpansBeginAtTheServersTime(t *testing.T) {
	b := newBehind(t)
	b.step(5000)
	b.do(decision.Op{Kind: decision.Throttle, For: 1000})
	e, err := b.Read(t.Context(), "shop")
	oktest.OK(t, err)
	if closed := e.State.Closed - b.now; closed < 1000 {
		t.Errorf("the entity is closed for %d ms, want 1000", closed)
	}
}

// It admits no operation that is late, and none by a pin that has ended.
func TestSpansEndAtTheServersTime(t *testing.T) {
	admit := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}
	b := newBehind(t)
	b.step(5000)
	late := admit
	late.Deadline = b.now - 400
	if a := b.do(late); !a.Late {
		t.Errorf("400 ms after the deadline: %+v", a)
	}
	b = newBehind(t)
	b.do(decision.Op{Kind: decision.Pin, For: 1000, Pin: &decision.PinnedLimit{Tokens: 2, Raise: 1}})
	if a := b.do(admit); a.Lease.ID == 0 {
		t.Fatalf("the first operation: %+v", a)
	}
	b.step(1500)
	if a := b.do(admit); a.Lease.ID != 0 {
		t.Errorf("a second operation after the end of the pin: %+v", a)
	}
}

// After Close no try to give back a lease is made again. A lease ends by itself.
func TestNothingIsSentAgainAfterClose(t *testing.T) {
	for err, want := range map[error]bool{ErrClosed: false, errors.New("the answer was lost"): true} {
		c := &batch.Call{Op: decision.Op{Kind: decision.Cancel, Lease: decision.Lease{ID: 1}}}
		if fail([]*batch.Call{c}, err); c.Again != want {
			t.Errorf("after %v: sent again %v, want %v", err, c.Again, want)
		}
	}
}
