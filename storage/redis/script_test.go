package redis

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/storagetest"
)

// A long run is -decisions 1100000, for a few minutes.
var decisions = flag.Int("decisions", 10_000, "how many random operations the script is compared with Apply by")

// backends are the kinds of Lua a script meets, how to reach it, and how many times less of it is enough.
var backends = []struct {
	name   string
	client func(testing.TB) goredis.UniversalClient
	less   int
}{
	{"redis", connectRedis, 1},
	{"miniredis", func(t testing.TB) goredis.UniversalClient { // its Lua is slow
		return goredis.NewClient(&goredis.Options{Addr: miniredis.RunT(t).Addr()})
	}, 10},
	{"cluster", func(t testing.TB) goredis.UniversalClient {
		return goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: servers.OwnRedisCluster(t, 3, 0).Addrs()})
	}, 10},
}

func connectRedis(t testing.TB) goredis.UniversalClient {
	o, err := goredis.ParseURL(servers.UseRedis(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	return goredis.NewClient(o)
}

func newStorage(t testing.TB, client goredis.UniversalClient) *Storage {
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(client, Options{Prefix: fmt.Sprintf("%s-%x:", t.Name(), rand.Uint64())})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestScriptAppliesAsApply has single operations compared, as every backend has, but many more of them.
func TestScriptAppliesAsApply(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			s := newStorage(t, b.client(t))
			const steps = 250
			seed := rand.Uint64() >> 1
			for done := 0; done < *decisions/b.less; done += steps {
				storagetest.Compare(t, s, seed, steps)
				seed++
			}
		})
	}
}

var entities atomic.Int64

// comparison is an entity that is decided by the script and by Apply.
type comparison struct {
	storage *Storage
	key     string
	limits  storage.Limits
	state   storage.State
	known   bool
	tickets []storage.Ticket
	leases  []storage.Lease
}

func newComparison(s *Storage, l storage.Limits) *comparison {
	return &comparison{storage: s, key: fmt.Sprint("compared-", entities.Add(1)), limits: l, state: l.New()}
}

// run does the operations in one call of the script, and compares answers and state.
func (c *comparison) run(ops []storage.Op) error {
	calls := make([]*call, len(ops))
	want := make([]storage.Answer, len(ops))
	next, known, large := c.state.Clone(), c.known, false
	limits, err := packLimits(&c.limits)
	if err != nil {
		return err
	}
	for i, op := range ops {
		packed, err := packOp(&op)
		if err != nil {
			return err
		}
		calls[i] = &call{key: c.storage.key(c.key), limits: limits, op: packed, kind: op.Kind}
		if known || !op.Kind.OnKnown() {
			c.limits.Apply(&next, &op, op.Now, &want[i])
			known = true
			large = large || c.isLarge(next)
		}
	}
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%+v from %+v %+v by %+v: %s", c.limits, c.state, c.state.Booking, ops, fmt.Sprintf(format, args...))
	}
	c.storage.decide(calls)
	switch err := calls[0].err; {
	case errors.Is(err, ErrRange) && !large:
		return fail("refused; the state would be %+v %+v", next, next.Booking)
	case errors.Is(err, ErrRange):
		next, known = c.state, c.known
	case err != nil:
		return fail("%v", err)
	default:
		for i := range ops {
			if calls[i].answer != want[i] {
				return fail("answer %d is %+v, want %+v", i, calls[i].answer, want[i])
			}
			if a := want[i]; ops[i].Kind == storage.Admit && a.Delay == 0 {
				c.leases = append(c.leases, a.Lease)
			} else if ops[i].Kind == storage.Admit {
				c.tickets = append(c.tickets, a.Ticket)
			}
		}
	}
	stored, rev, err := c.storage.Get(context.Background(), c.key)
	if err != nil {
		return err
	}
	if (rev != storage.NoRevision) != known || known && !stored.Equal(next) {
		return fail("stored %+v %+v, want %+v %+v", stored, stored.Booking, next, next.Booking)
	}
	c.state, c.known = next, known
	return nil
}

// isLarge tells whether the script may refuse s: a number of it, or of what is calculated on the way, is too large.
func (c *comparison) isLarge(s storage.State) bool {
	free := s.Clone()
	free.InUse = 1
	c.limits.Apply(&free, &storage.Op{Kind: storage.ReturnToken}, 0, new(storage.Answer)) // sets Until
	numbers := append(free.Numbers(), s.InUse)
	if b := s.Booking; b != nil { // how long a token is waited for
		tokens := float64(max(c.limits.Concurrency, c.limits.Size))
		held := float64(b.Held) + tokens*float64(c.limits.WaitForToken)
		numbers = append(numbers, int64(min(1<<60, 4*held*float64(1+b.Old.Tickets+b.New.Tickets))), int64(min(1<<60, tokens*65*4)))
	}
	return slices.ContainsFunc(numbers, func(n int64) bool { return n <= -limit/4 || n >= limit/4 })
}

// FuzzScript drives an entity through any limits and any times. A byte of steps is an operation: two bits say what
// happens, one whether the call of the script ends with it, the others how far time moves or which operation it is.
func FuzzScript(f *testing.F) {
	f.Add(int64(5), int64(3), int64(1000), int64(50), int64(10_000), int64(10_000), int64(0), int64(0), []byte{0, 1, 2, 3, 200, 100, 9, 1, 1, 1})
	f.Add(int64(1), int64(32), int64(86_400_000), int64(10), int64(1_500_000_000_123), int64(1_500_001_396_256), int64(0), int64(0), []byte("\x00\x81\x42\x17\x99\xc0\xff"))
	f.Add(int64(7), int64(2), int64(7), int64(90), int64(-1_000_003), int64(-1_000_000), int64(3), int64(0), []byte{0x21, 0x41, 0xe1, 0xc0, 0x80, 0xc0, 0x05, 0x45, 0x7f, 0x3f, 0x40})
	f.Add(int64(7), int64(2), int64(1000), int64(90), int64(1_500_000_000_123), int64(1_500_001_396_256), int64(3), int64(9), []byte{0xc1, 0xc1, 0xc1, 0xc1, 0xc1, 0xe2, 0xc3, 0xc4, 0x05, 0xc5, 0xc6, 0xc7, 0xc8, 0x21, 0x43, 0xc9, 0xca})
	f.Add(int64(limit-1), int64(1), int64(1), int64(1), int64(1-limit), int64(limit-1), int64(1), int64(limit-1), []byte{0, 64, 128, 192, 255})
	f.Add(int64(1), int64(limit-1), int64(limit-1), int64(limit-1), int64(limit-1), int64(1-limit), int64(0), int64(1), []byte{255, 192, 128, 64, 0})
	f.Add(int64(math.MaxInt64), int64(limit), int64(limit+1), int64(3), int64(math.MinInt64), int64(limit), int64(0), int64(0), []byte{1})
	s := newStorage(f, connectRedis(f))
	f.Fuzz(func(t *testing.T, size, rate, interval, wait, start, now, concurrency, further int64, steps []byte) {
		l := storage.Limits{
			Window:      storage.Window{Size: size, RefreshRate: rate, RefreshInterval: interval},
			Concurrency: concurrency, WaitForToken: wait, Start: start, Lease: wait, MaxLease: interval,
		}
		if further != 0 {
			l.Windows = []storage.Window{{Size: further, RefreshRate: rate, RefreshInterval: wait}, {Size: further, RefreshRate: 1, RefreshInterval: interval}}
		}
		if l.Validate() != nil || len(steps) > 500 {
			t.Skip()
		}
		for _, n := range []int64{size, rate, interval, wait, start, now, concurrency, further} {
			if outside(n) {
				if _, err := s.Do(t.Context(), "refused", &l, storage.Op{Kind: storage.GetDelay, Now: now}); !errors.Is(err, ErrRange) {
					t.Fatalf("%+v at %d: %v, want ErrRange", l, now, err)
				}
				return
			}
		}
		c := newComparison(s, l)
		var ops []storage.Op
		for i, b := range steps {
			far := int64(b&31) * (interval/16 + 1)
			op := storage.Op{Kind: storage.GetDelay}
			switch b >> 6 {
			case 0:
				now = min(now+far, limit-1)
			case 1:
				now = max(now-far, 1-limit)
			case 2:
				op.Kind = storage.ReturnToken
			case 3:
				op = c.other(int(b & 31))
			}
			op.Now = now
			if _, err := packOp(&op); err != nil { // too large
				op = storage.Op{Kind: storage.ReturnToken}
			}
			ops = append(ops, op)
			if b&32 != 0 || i == len(steps)-1 {
				if err := c.run(ops); err != nil {
					t.Fatal(err)
				}
				ops = nil
			}
		}
	})
}

// other makes one of the operations on tickets and leases, with those there are.
func (c *comparison) other(n int) storage.Op {
	op := storage.Op{Kind: storage.Admit, Cost: 1}
	if n < 12 && len(c.tickets) > 0 {
		op.Ticket = c.tickets[n%len(c.tickets)]
	}
	if len(c.leases) > 0 {
		op.Lease = c.leases[n%len(c.leases)]
	}
	switch {
	case n < 12:
		op.Cost = 1 + int64(n%4)*c.limits.Size/8
	case n < 16:
		op.Kind, op.Cost = storage.Settle, int64(n-12)*c.limits.Size/2
	case n < 19:
		op.Kind = storage.Cancel
	case n < 22:
		op.Kind = storage.Renew
	case n < 25:
		op.Kind, op.For = storage.Throttle, int64(n)*c.limits.WaitForToken/8
	case n < 27:
		op.Kind, op.For = storage.Pause, int64(n)*c.limits.RefreshInterval/8
	case n < 28:
		op.Kind = storage.Resume
	case n < 29:
		op.Kind = storage.Reset
	default: // a forged one
		op.Ticket = storage.Ticket{Slot: c.state.Ops.Last - int64(n), Epoch: c.state.Ops.Last, Cost: int64(n), Number: int64(n), Again: int64(n % 2)}
	}
	return op
}

// TestScriptTakesSeveral compares random runs of several operations a call, most of them near intervals, sizes and
// rates where answers change.
func TestScriptTakesSeveral(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			s, n := newStorage(t, b.client(t)), *decisions/b.less
			seed := rand.Uint64()
			rnd := rand.New(rand.NewPCG(seed, 0))
			for n > 0 {
				c := newComparison(s, randomLimits(rnd))
				now := c.limits.Start + rnd.Int64N(5*c.limits.RefreshInterval)
				classic := rnd.IntN(2) == 0
				for range 1 + rnd.IntN(20) {
					if c.known && rnd.IntN(20) == 0 {
						c.limits = randomLimits(rnd) // another version of the program
					}
					ops := make([]storage.Op, 1+rnd.IntN(10))
					for i := range ops {
						switch dice := rnd.IntN(6); {
						case dice < 2:
							ops[i] = storage.Op{Kind: storage.ReturnToken}
						case dice < 4 && !classic:
							ops[i] = c.other(rnd.IntN(32))
						default:
							ops[i] = storage.Op{Kind: storage.GetDelay}
						}
						ops[i].Now = now
						if _, err := packOp(&ops[i]); err != nil { // too large
							ops[i] = storage.Op{Kind: storage.ReturnToken}
						}
						now = step(rnd, &c.limits, now)
					}
					n -= len(ops)
					if err := c.run(ops); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
			}
		})
	}
}

func randomLimits(rnd *rand.Rand) storage.Limits {
	upTo := func(most ...int64) int64 { return 1 + rnd.Int64N(most[rnd.IntN(len(most))]) }
	window := func() storage.Window {
		return storage.Window{
			Size:            upTo(1, 4, 50, 10_000, 1<<40),
			RefreshRate:     upTo(1, 4, 50, 10_000, 1<<40),
			RefreshInterval: upTo(1, 10, 1000, 86_400_000, 1<<40),
		}
	}
	l := storage.Limits{
		Window:       window(),
		Concurrency:  upTo(1, 4, 10_000) - 1,
		WaitForToken: upTo(1, 100, 100_000, 1<<40),
		Start:        []int64{0, -5000, 1_500_000_000_000, -1 << 50, limit - 1<<42}[rnd.IntN(5)] + upTo(10_000),
		Lease:        upTo(1, 1000, 1<<40),
		MaxLease:     upTo(1000, 1<<40),
	}
	for range max(0, rnd.IntN(5)-2) {
		l.Windows = append(l.Windows, window())
	}
	return l
}

// step moves time a little, a lot or back.
func step(rnd *rand.Rand, l *storage.Limits, now int64) int64 {
	switch rnd.IntN(8) {
	case 0:
		return now + rnd.Int64N(3*l.RefreshInterval)
	case 1:
		return now + rnd.Int64N(l.WaitForToken+1)
	case 2:
		return now - rnd.Int64N(2*l.RefreshInterval)
	case 3:
		return now - now%l.RefreshInterval + l.RefreshInterval - rnd.Int64N(2)
	}
	return now
}
