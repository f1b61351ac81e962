package redis

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/recall"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

// A long run is -decisions 1100000, for a few minutes.
var decisions = flag.Int("decisions", 10_000, "how many random operations the script is compared with Apply by")

var seed = flag.Uint64("seed", 0, "the seed of a run of TestScript that failed; by default another each time")

// backends are the kinds of Lua a script meets, how to reach it, and how many times less of it is enough.
var backends = []struct {
	name   string
	client func(testing.TB) goredis.UniversalClient
	less   int
}{
	{"redis", connectRedis, 1},
	{"miniredis", func(t testing.TB) goredis.UniversalClient { // its Lua is slow
		return goredis.NewClient(&goredis.Options{Addr: miniredis.RunT(t).Addr(), ReadTimeout: time.Minute})
	}, 10},
	{"cluster", func(t testing.TB) goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: servers.OwnRedisCluster(t, 3, 0).Addrs()})
	}, 10},
}

func connectRedis(t testing.TB) goredis.UniversalClient {
	o, err := goredis.ParseURL(servers.UseRedis(t).URL())
	oktest.OK(t, err)
	return goredis.NewClient(o)
}

func openStorage(t testing.TB, client goredis.UniversalClient) *Storage {
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(client, Options{Prefix: fmt.Sprintf("{%s-%x}:", t.Name(), rand.Uint64())})
	oktest.OK(t, err)
	return s
}

var entities atomic.Int64

// comparison is an entity that the storage decides about, and Apply.
type comparison struct {
	storage *Storage
	lanes   []*lane
	rnd     *rand.Rand
	key     string
	limits  decision.Limits
	state   decision.State
	held    []storage.Held
	tickets []decision.Ticket
	leases  []decision.Lease
	weight  int64
	shared  []*comparison // the limits that it is within
	beside  []*comparison // other entities within them
}

func newComparison(s *Storage, l decision.Limits, rnd *rand.Rand) *comparison {
	// One lane has decide.lua decide, the other decides here where it can. With both each finds states that it does not know.
	lanes := [][]*lane{{{storage: s}}, {{storage: s, clock: recall.NewClock()}}, {{storage: s}, {storage: s, clock: recall.NewClock()}}}[rnd.IntN(3)]
	entity := func(l decision.Limits) *comparison {
		return &comparison{
			storage: s, lanes: lanes, rnd: rnd, key: fmt.Sprint("compared-%}-", entities.Add(1)), limits: l, weight: 1 + rnd.Int64N(5),
		}
	}
	c := entity(l)
	for range max(0, rnd.IntN(5)-2) {
		x := entity(randomLimits(rnd))
		x.limits.Start = l.Start
		c.shared = append(c.shared, x)
	}
	for range rnd.IntN(4) * min(1, len(c.shared)) {
		x := entity(randomLimits(rnd))
		x.shared = c.shared
		c.beside = append(c.beside, x)
	}
	return c
}

// asked is an operation on an entity.
type asked struct {
	of *comparison
	op decision.Op
}

// run does the operations in one call of the script, and compares answers and state.
func (c *comparison) run(ops []decision.Op) error {
	asks := make([]asked, len(ops))
	for i, op := range ops {
		asks[i] = asked{c, op}
	}
	return c.runAll(asks)
}

// runAll does operations on c, and after them on entities within the same shared limits, in one call of the script.
func (c *comparison) runAll(asks []asked) error {
	turn := &batch.Turn{Calls: make([]*batch.Call, len(asks))}
	want := make([]decision.Answer, len(asks))
	type state struct {
		decision.State
		leases *storage.Leases
	}
	states := map[*comparison]*state{}
	stateOf := func(c *comparison) *state {
		if states[c] == nil {
			states[c] = &state{c.state.Copy(), storage.NewLeases(slices.Clone(c.held))}
		}
		return states[c]
	}
	for i, a := range asks {
		within := make([]storage.Within, len(c.shared))
		shared := make([]decision.Shared, len(within))
		for j, x := range c.shared {
			within[j] = storage.Within{Key: x.key, Limits: &x.limits, ID: int64(j + 1), Weight: a.of.weight + int64(j)*7}
			shared[j] = within[j].In(&stateOf(x).State, stateOf(x).leases)
		}
		turn.Calls[i] = &batch.Call{Key: a.of.key, Limits: a.of.limits, Within: within, Op: a.op}
		next := stateOf(a.of)
		a.of.limits.ApplyWithin(&next.State, next.leases, shared, &a.op, a.op.Now, &want[i])
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s\nby %+v\nfrom %+v %v by %+v", fmt.Sprintf(format, args...), c.limits, c.state, c.held, asks)
	}
	l := c.lanes[c.rnd.IntN(len(c.lanes))]
	if asks[len(asks)-1].of != c { // it would decide first about the entities that it knows
		l = &lane{storage: c.storage}
	}
	l.decide([]*batch.Turn{turn}, func([]*batch.Turn) {})
	for i, call := range turn.Calls {
		if call.Err != nil {
			return fail("%v", call.Err)
		}
		if call.Answer != want[i] {
			return fail("answer %d is %+v, want %+v", i, call.Answer, want[i])
		}
		of := asks[i].of
		if a := want[i]; a.Lease.ID != 0 {
			of.leases = append(of.leases, a.Lease)
		}
		if a := want[i]; a.Ticket.Number != 0 {
			of.tickets = append(of.tickets, a.Ticket)
		}
	}
	for of, next := range states {
		if err := of.compareStored(next.State, next.leases, fail); err != nil {
			return err
		}
	}
	return nil
}

// compareStored compares the stored state with the expected one, and goes on from it.
func (c *comparison) compareStored(next decision.State, leases *storage.Leases, fail func(format string, args ...any) error) error {
	got, rev, err := c.storage.Get(context.Background(), c.key)
	if err != nil {
		return err
	}
	if (rev == storage.NoRevision) != (next.Tokens == 0) {
		return fail("revision %d of %+v", rev, next)
	}
	if next.Tokens != 0 {
		var state decision.State
		held, err := storage.Decode(got.Data, &state)
		if err != nil {
			return fail("%v", err)
		}
		if a, b := storage.Encode(&state, nil), storage.Encode(&next, nil); string(a) != string(b) {
			return fail("stored %+v, want %+v", state, next)
		}
		now := next.Now // what has ended may be there still
		a, b := alive(held, now), alive(leases.All(), now)
		if !slices.Equal(a, b) {
			return fail("stored leases %v, want %v", a, b)
		}
		if got.Now != next.Now || got.Until < c.limits.Until(&next) {
			return fail("stored %d until %d, want %d until %d", got.Now, got.Until, next.Now, c.limits.Until(&next))
		}
	}
	c.state, c.held = next, leases.All()
	return nil
}

func alive(held []storage.Held, now int64) []storage.Held {
	held = slices.DeleteFunc(slices.Clone(held), func(h storage.Held) bool { return h.End <= now })
	byEnd(held)
	return held
}

// op makes a random operation, with the tickets and leases there are.
func (c *comparison) op(rnd *rand.Rand, now int64) decision.Op {
	op := decision.Op{Kind: decision.Admit, Now: now, Cost: decision.Cost{1}, Urgent: rnd.IntN(4) == 0}
	if rnd.IntN(4) == 0 {
		op.Deadline = max(1, now+rnd.Int64N(5000)-100)
	}
	var most decision.Cost
	for unit := range most {
		most[unit] = c.limits.Most(int64(unit))
		for _, x := range c.shared {
			most[unit] = min(most[unit], x.limits.Most(int64(unit)))
		}
		if unit > 0 && rnd.IntN(2) == 0 {
			op.Cost[unit] = rnd.Int64N(min(most[unit], 1+rnd.Int64N(most[unit])))
		}
	}
	dice := rnd.IntN(100)
	if n := len(c.tickets); n > 0 && rnd.IntN(3) > 0 {
		op.Ticket = c.tickets[max(0, n-1-rnd.IntN(10))]
	}
	if n := len(c.leases); n > 0 {
		op.Lease = c.leases[max(0, n-1-rnd.IntN(10))]
		if rnd.IntN(20) == 0 {
			op.Lease.ID++
		}
	}
	switch {
	case dice < 40:
		op.Cost[0] = 1 + rnd.Int64N(min(most[0], 1+rnd.Int64N(most[0])))
	case dice < 50:
		op.Kind = decision.GetDelay
	case dice < 60:
		op.Kind = decision.ReturnToken
	case dice < 80:
		op.Kind, op.Cost[0] = decision.Settle, rnd.Int64N(2*most[0]+1)
	case dice < 88:
		op.Kind = decision.Cancel
	case dice < 90:
		op.Kind = decision.Renew
	case dice < 91:
		op = c.pin(rnd, now)
	case dice < 93:
		op.Kind, op.For, op.Level = decision.Throttle, rnd.Int64N(3*c.limits.Windows[0].Interval), rnd.Int64N(2)
		if rnd.IntN(3) == 0 {
			op.Kind, op.Level = decision.Announce, 1+rnd.Int64N(decision.Whole)
		}
	case dice < 95:
		op.Kind, op.For = decision.Pause, rnd.Int64N(3*c.limits.Windows[0].Interval)
	case dice < 96:
		op.Kind = decision.Resume
	case dice < 97:
		op.Kind = decision.Reset
	default: // a forged one
		op.Ticket = decision.Ticket{Slot: 1 + rnd.Int64N(decision.LastTime-1), Number: rnd.Int64N(1000), Again: rnd.Int64N(2), Cost: decision.Cost{rnd.Int64N(most[0]), 0, rnd.Int64N(most[2])}}
	}
	return op
}

// pin makes a Pin or an Unpin.
func (c *comparison) pin(rnd *rand.Rand, now int64) decision.Op {
	op, w := decision.Op{Kind: decision.Pin, Now: now, Pin: &decision.PinnedLimit{}}, randomLimits(rnd).Windows[0]
	if rnd.IntN(3) == 0 {
		op.Kind, op.Pin = decision.Unpin, nil
		return op
	}
	if rnd.IntN(2) == 0 {
		w.Interval = c.limits.Windows[rnd.IntN(len(c.limits.Windows))].Interval
	}
	if rnd.IntN(5) > 0 {
		op.Pin.Window = w
	}
	op.Pin.Tokens, op.Pin.Raise = rnd.Int64N(5), rnd.Int64N(2)
	op.For = rnd.Int64N(6) * rnd.Int64N(2*min(w.Interval, 1<<38))
	return op
}

// TestScript compares random runs of several operations a call, most of them near intervals, sizes and rates where
// answers change.
func TestScript(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			s, n := openStorage(t, b.client(t)), *decisions/b.less
			seed := cmp.Or(*seed, rand.Uint64())
			rnd := rand.New(rand.NewPCG(seed, 0))
			for half := n / 2; n > 0; {
				if n <= half {
					keepFew(t)
					half = -1
				}
				c := newComparison(s, randomLimits(rnd), rnd)
				if n -= c.compare(t, rnd); t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// keepFew has the script keep four leases in a value, so that most of them are in a set.
func keepFew(t *testing.T) {
	before := decideScript
	source := strings.ReplaceAll(before.source, "#leases > 16 * 512 ", "#leases > 16 * 4 ")
	if source == before.source {
		t.Fatal("the script does not say how many leases it keeps in a value")
	}
	decideScript = newScript(source)
	t.Cleanup(func() { decideScript = before })
}

// TestEndsInSet has one call put leases of several ends into the set. The last of them ends at the same time as a lease
// that is there.
func TestEndsInSet(t *testing.T) {
	keepFew(t)
	s, rnd := openStorage(t, connectRedis(t)), rand.New(rand.NewPCG(0, 0))
	c := &comparison{storage: s, lanes: []*lane{{storage: s}}, rnd: rnd, key: "ends", limits: *buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: 100, Rate: 100, Interval: 1000}}, Tokens: 100, Guess: 1, Lease: 1000, MaxLease: 1000,
	})}
	admit := decision.Op{Kind: decision.Admit, Now: 5000, Cost: decision.Cost{1}}
	oktest.OK(t, c.run(slices.Repeat([]decision.Op{admit}, 6)))
	renew := decision.Op{Kind: decision.Renew, Now: 5000, Lease: c.leases[0]}
	renew.Lease.Begin -= 200 // so that it ends 200 ms before the others
	oktest.OK(t, c.run([]decision.Op{admit, renew, admit}))
}

// TestEntitiesShareCalls has one pipeline decide about many entities. On a single server they share the calls of decide.lua. A value
// that is no state, and limits that change, are their own entity's.
func TestEntitiesShareCalls(t *testing.T) {
	s := openStorage(t, connectRedis(t))
	plenty := decision.Limits{Windows: []decision.Window{{Size: 1000, Rate: 1000, Interval: 1000}}, Tokens: 1000, Guess: 1, Lease: 1000, MaxLease: 1000}
	fewer := plenty
	fewer.Windows = []decision.Window{{Size: 1, Rate: 1, Interval: 1000}}
	plenty, fewer = *buckettest.Ready(plenty), *buckettest.Ready(fewer)
	oktest.OK(t, s.client.ScriptLoad(t.Context(), decideScript.source).Err())
	admit := decision.Op{Kind: decision.Admit, Now: 5000, Cost: decision.Cost{1}}
	for known, calls := range map[int64]int{0: 100 + 1, found: 7} {
		s.found.Store(known)
		var turns []*batch.Turn
		for i := range 100 {
			key := fmt.Sprint(known, " shop ", i)
			turn := &batch.Turn{Calls: []*batch.Call{{Key: key, Limits: plenty, Op: admit}}}
			if i == 7 {
				turn.Calls = append(turn.Calls, &batch.Call{Key: key, Limits: fewer, Op: admit})
			}
			turns = append(turns, turn)
		}
		oktest.OK(t, s.client.Set(t.Context(), s.key(turns[3].Calls[0].Key), "no state", 0).Err())
		var sent counting
		s.client.AddHook(&sent)
		(&lane{storage: s}).decide(turns, func([]*batch.Turn) {})
		if sent.commands != calls {
			t.Errorf("%d values found: 100 entities take %d calls, want %d", known, sent.commands, calls)
		}
		for i, turn := range turns {
			for j, c := range turn.Calls {
				if i == 3 != errors.Is(c.Err, ErrNotState) || i != 3 && (c.Err != nil || c.Answer.Delay > 0 != (j == 1)) {
					t.Errorf("%d values found: shop %d, call %d: %+v, %v", known, i, j, c.Answer, c.Err)
				}
			}
		}
	}
}

// TestFoundAmongOthers has another process change a value, and then remove it. Only a value that is missing may be on another server.
func TestFoundAmongOthers(t *testing.T) {
	s := openStorage(t, connectRedis(t))
	limits := buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: 1000, Rate: 1000, Interval: 3_600_000}}, Tokens: 1000, Guess: 1, Lease: 3_600_000, MaxLease: 3_600_000,
	})
	alone, other := &lane{storage: s, clock: recall.NewClock()}, &lane{storage: s}
	decide := func(l *lane, keys ...string) {
		var turns []*batch.Turn
		for _, key := range keys {
			op := decision.Op{Kind: decision.Admit, Now: decision.OwnClock, Cost: decision.Cost{1}}
			turns = append(turns, &batch.Turn{Calls: []*batch.Call{{Key: key, Limits: *limits, Op: op}}})
		}
		l.decide(turns, func([]*batch.Turn) {})
		for _, turn := range turns {
			oktest.OK(t, turn.Calls[0].Err)
		}
	}
	for _, change := range []struct {
		by   func(key string)
		want int64
	}{
		{func(key string) { decide(other, key) }, 8},
		{func(key string) { s.client.Del(t.Context(), s.key(key)) }, 0},
	} {
		n := int64(7)
		for i := 0; i < 10 && n == 7; i++ { // a call that is late by a second tells nothing
			first, second := fmt.Sprint("first ", change.want, i), fmt.Sprint("second ", change.want, i)
			decide(alone, first, second) // by decide.lua
			decide(alone, first, second)
			change.by(second)
			s.found.Store(7)
			decide(alone, first, second)
			n = s.found.Load()
		}
		if n != change.want {
			t.Errorf("%d values found, want %d", n, change.want)
		}
	}
}

// TestLeasesByOwnClock has decide.lua decide by its own clock, which takes shorter arguments for most operations.
func TestLeasesByOwnClock(t *testing.T) {
	s, err := New(openStorage(t, connectRedis(t)).client, Options{Prefix: fmt.Sprintf("%x:", rand.Uint64()), Remember: -1})
	oktest.OK(t, err)
	l := buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: 100, Rate: 1, Interval: 60_000}}, Tokens: 100, Guess: 1, Lease: 60_000, MaxLease: 120_000, Start: 1,
	})
	do := func(op decision.Op) decision.Answer { return buckettest.Do(t, s, "shop", l, op) }
	for _, cost := range []decision.Cost{{1}, {2}, {1, 0, 3}} {
		admitted := do(decision.Op{Kind: decision.Admit, Cost: cost})
		if b := admitted.Lease; b.ID == 0 || b.End != b.Begin+l.Lease || b.Cost != cost {
			t.Errorf("Admit of %v: %+v", cost, admitted)
		}
		if renewed := do(decision.Op{Kind: decision.Renew, Lease: admitted.Lease}); !renewed.Found || renewed.Lease.ID != admitted.Lease.ID || renewed.Lease.Cost != cost {
			t.Errorf("Renew of %v: %+v", cost, renewed)
		}
		settle := decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: admitted.Lease}
		if first, second := do(settle), do(settle); !first.Found || second.Found {
			t.Errorf("Settle of %v: %+v, again: %+v", cost, first, second)
		}
	}
	e, err := s.Read(t.Context(), "shop")
	if left := e.State.Lines[0].Left; err != nil || left != 97 || e.Out != 0 {
		t.Errorf("after three calls %d of 100 are left, and %d leases, %v", left, e.Out, err)
	}
	postponed := do(decision.Op{Kind: decision.Admit, Cost: decision.Cost{100}})
	if ticket := postponed.Ticket; ticket.Slot == 0 || ticket.Cost != (decision.Cost{100}) {
		t.Errorf("the ticket of 100: %+v", postponed)
	}
}

type counting struct{ commands int }

func (c *counting) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (c *counting) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }
func (c *counting) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, all []goredis.Cmder) error {
		c.commands += len(all)
		return next(ctx, all)
	}
}

// FuzzScript has the fuzzer choose the random runs.
func FuzzScript(f *testing.F) {
	s := openStorage(f, connectRedis(f))
	for _, seed := range []uint64{995, 1306, 14755, 17194} { // numbers above 2^53 in shared limits
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		newComparison(s, randomLimits(rnd), rnd).compare(t, rnd)
	})
}

// compare makes the random run of one entity. It returns the number of operations.
func (c *comparison) compare(t *testing.T, rnd *rand.Rand) (n int) {
	now := min(max(1, c.limits.Start)+rnd.Int64N(5*c.limits.Windows[0].Interval), decision.LastTime-1)
	classic := rnd.IntN(3) == 0
	for range 1 + rnd.IntN(20) {
		if rnd.IntN(20) == 0 {
			c.limits = randomLimits(rnd) // another version of the program
		}
		ops := make([]decision.Op, 1+rnd.IntN(20))
		for _, x := range c.shared {
			if rnd.IntN(10) == 0 {
				if err := x.run([]decision.Op{x.pin(rnd, now)}); err != nil {
					t.Error(err)
					return n
				}
			}
		}
		if rnd.IntN(20) == 0 {
			ops = make([]decision.Op, 200) // many leases
		}
		for i := range ops {
			switch op := &ops[i]; {
			case len(ops) == 200:
				*op = decision.Op{Kind: decision.Admit, Now: now, Cost: decision.Cost{1}}
			case classic:
				*op = decision.Op{Kind: decision.Kind(rnd.IntN(3) / 2), Now: now}
			default:
				*op = c.op(rnd, now)
			}
			now = min(step(rnd, &c.limits, now), decision.LastTime-1)
		}
		var asks []asked
		for _, op := range ops {
			asks = append(asks, asked{c, op})
		}
		for _, x := range c.beside {
			for range rnd.IntN(4) {
				asks = append(asks, asked{x, x.op(rnd, now)})
				now = min(step(rnd, &x.limits, now), decision.LastTime-1)
			}
		}
		if err := c.runAll(asks); err != nil {
			t.Error(err)
			return n
		}
		n += len(asks)
	}
	return n
}

func randomLimits(rnd *rand.Rand) decision.Limits {
	upTo := func(most ...int64) int64 { return 1 + rnd.Int64N(most[rnd.IntN(len(most))]) }
	l := decision.Limits{
		Tokens:   upTo(1, 4, 100, 10_000),
		Guess:    upTo(1, 100, 100_000, decision.MostTime),
		Lease:    upTo(1, 1000, 100_000, decision.MostTime),
		Start:    []int64{0, -5000, 1_500_000_000_000, -decision.LastTime, decision.LastTime - 1<<42}[rnd.IntN(5)] + upTo(10_000),
		MaxLease: decision.MostTime,
	}
	for range max(1, rnd.IntN(6)-2) {
		w := decision.Window{
			Size:     upTo(1, 4, 50, 10_000, decision.MostUnits),
			Rate:     upTo(1, 4, 50, 10_000, decision.MostUnits),
			Interval: upTo(1, 10, 1000, 86_400_000, decision.MostTime),
			Unit:     max(0, rnd.Int64N(2*decision.Units)-decision.Units),
		}
		switch rnd.IntN(4) {
		case 0:
			w.Offset = rnd.Int64N(w.Interval)
		case 1:
			w.Series, w.Offset = upTo(2), min(max(0, l.Start)+rnd.Int64N(3*w.Interval), decision.LastTime)
		}
		l.Windows = append(l.Windows, w)
	}
	return *buckettest.Ready(l)
}

// step moves time a little, a lot or back.
func step(rnd *rand.Rand, l *decision.Limits, now int64) int64 {
	interval := l.Windows[0].Interval
	switch rnd.IntN(16) {
	case 0:
		return now + rnd.Int64N(3*interval)
	case 1, 2:
		return now + rnd.Int64N(min(l.Guess, l.Lease)+1)
	case 3:
		return now - rnd.Int64N(2*interval)
	case 4:
		return now - now%interval + interval - rnd.Int64N(2)
	}
	return now
}
