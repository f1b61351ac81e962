package redis

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

var decisions = flag.Int("decisions", 20_000, "how many random decisions TestScriptDecidesAsDecide compares")

// backends are the two kinds of Lua a script meets.
var backends = map[string]func(testing.TB) string{
	"miniredis": func(t testing.TB) string { return "redis://" + miniredis.RunT(t).Addr() },
	"redis":     func(t testing.TB) string { return servers.UseRedis(t).URL() },
}

func newStorage(t testing.TB, url string) *Storage {
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	s, err := New(client, Options{Prefix: fmt.Sprintf("%s-%x:", t.Name(), rand.Uint64())})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var entities atomic.Int64

// comparison is an entity that is decided by the script and by Decide.
type comparison struct {
	storage *Storage
	key     string
	limits  storage.Limits
	state   storage.State
	known   bool
}

func newComparison(s *Storage, l storage.Limits) *comparison {
	return &comparison{storage: s, key: fmt.Sprint("compared-", entities.Add(1)), limits: l, state: l.New()}
}

// run makes the operations, times or opReturn, in one call of the script, and compares answers and state.
func (c *comparison) run(ops []any) error {
	calls := make([]*call, len(ops))
	want := make([]int64, len(ops))
	next, known := c.state, c.known
	for i, op := range ops {
		calls[i] = &call{key: c.storage.key(c.key), limits: c.limits, op: op}
		if now, ok := op.(int64); ok {
			want[i], known = c.limits.Decide(&next, now), true
		} else if known {
			c.limits.Return(&next)
		}
	}
	c.storage.decide(calls)
	if err := calls[0].err; err != nil {
		if !errors.Is(err, ErrRange) {
			return err
		}
		if c.exact(next) {
			return fmt.Errorf("%+v from %+v by %v: refused; the state would be %+v", c.limits, c.state, ops, next)
		}
		next, known = c.state, c.known
	} else {
		if next != c.state && !c.exact(next) {
			return fmt.Errorf("%+v from %+v by %v: not refused; the state is %+v", c.limits, c.state, ops, next)
		}
		for i := range ops {
			if calls[i].delay != want[i] {
				return fmt.Errorf("%+v from %+v by %v: delay %d of operation %d, want %d", c.limits, c.state, ops, calls[i].delay, i, want[i])
			}
		}
	}
	stored, rev, err := c.storage.Get(context.Background(), c.key)
	if err != nil {
		return err
	}
	if (rev != storage.NoRevision) != known || known && stored != next {
		return fmt.Errorf("%+v from %+v by %v: stored %+v, want %+v", c.limits, c.state, ops, stored, next)
	}
	c.state, c.known = next, known
	return nil
}

// exact tells if the script can calculate with s.
func (c *comparison) exact(s storage.State) bool {
	free := s
	free.InUse = 1
	c.limits.Return(&free) // sets Until to that without tokens out
	return !outside(s.Ops.Last) && !outside(s.Wait.Last) && !outside(free.Until) &&
		!outside(s.Ops.Capacity) && !outside(s.Wait.Capacity) && !outside(s.InUse)
}

// TestScriptDecidesAsDecide compares random runs, most of them near intervals, sizes and rates where answers change.
func TestScriptDecidesAsDecide(t *testing.T) {
	for name, url := range backends {
		t.Run(name, func(t *testing.T) {
			s := newStorage(t, url(t))
			n := *decisions
			if name == "miniredis" {
				n /= 10 // its Lua is slow
			}
			seed := rand.Uint64()
			rnd := rand.New(rand.NewPCG(seed, 0))
			for n > 0 {
				c := newComparison(s, randomLimits(rnd))
				now := c.limits.Start + rnd.Int64N(5*c.limits.RefreshInterval)
				for range 1 + rnd.IntN(20) {
					if c.known && rnd.IntN(20) == 0 {
						c.limits = randomLimits(rnd) // another version of the program
					}
					ops := make([]any, 1+rnd.IntN(10))
					for i := range ops {
						ops[i] = any(opReturn)
						if rnd.IntN(3) > 0 {
							ops[i] = now
							n--
						}
						now = step(rnd, &c.limits, now)
					}
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
	return storage.Limits{
		Size:            upTo(1, 4, 50, 10_000, 1<<40),
		RefreshRate:     upTo(1, 4, 50, 10_000, 1<<40),
		RefreshInterval: upTo(1, 10, 1000, 86_400_000, 1<<40),
		WaitForToken:    upTo(1, 100, 100_000, 1<<40),
		Start:           []int64{0, -5000, 1_500_000_000_000, -1 << 50, limit - 1<<42}[rnd.IntN(5)] + upTo(10_000),
	}
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

// FuzzScript drives an entity through any limits and any times. A byte of steps is an operation: two bits say what
// happens, one whether the call of the script ends with it, the others how far time moves.
func FuzzScript(f *testing.F) {
	f.Add(int64(5), int64(3), int64(1000), int64(50), int64(10_000), int64(10_000), []byte{0, 1, 2, 3, 200, 100, 9, 1, 1, 1})
	f.Add(int64(1), int64(32), int64(86_400_000), int64(10), int64(1_500_000_000_123), int64(1_500_001_396_256), []byte("\x00\x81\x42\x17\x99\xc0\xff"))
	f.Add(int64(7), int64(2), int64(7), int64(90), int64(-1_000_003), int64(-1_000_000), []byte{0x21, 0x41, 0xe1, 0xc0, 0x80, 0xc0, 0x05, 0x45, 0x7f, 0x3f, 0x40})
	f.Add(int64(limit-1), int64(1), int64(1), int64(1), int64(1-limit), int64(limit-1), []byte{0, 64, 128, 192, 255})
	f.Add(int64(1), int64(limit-1), int64(limit-1), int64(limit-1), int64(limit-1), int64(1-limit), []byte{255, 192, 128, 64, 0})
	f.Add(int64(math.MaxInt64), int64(limit), int64(limit+1), int64(3), int64(math.MinInt64), int64(limit), []byte{1})
	s := newStorage(f, servers.UseRedis(f).URL())
	f.Fuzz(func(t *testing.T, size, rate, interval, wait, start, now int64, steps []byte) {
		l := storage.Limits{Size: size, RefreshRate: rate, RefreshInterval: interval, WaitForToken: wait, Start: start}
		if l.Validate() != nil || len(steps) > 500 {
			t.Skip()
		}
		if outside(size) || outside(rate) || outside(interval) || outside(wait) || outside(start) || outside(now) {
			if _, err := s.GetDelay(t.Context(), "refused", &l, time.UnixMilli(now)); !errors.Is(err, ErrRange) {
				t.Fatalf("%+v at %d: %v, want ErrRange", l, now, err)
			}
			return
		}
		c := newComparison(s, l)
		var ops []any
		for i, b := range steps {
			far := int64(b&31) * (interval/16 + 1)
			switch b >> 6 {
			case 0:
				now = min(now+far, limit-1)
			case 1:
				now = max(now-far, 1-limit)
			}
			if b>>6 == 2 {
				ops = append(ops, opReturn)
			} else {
				ops = append(ops, now)
			}
			if b&32 != 0 || i == len(steps)-1 {
				if err := c.run(ops); err != nil {
					t.Fatal(err)
				}
				ops = nil
			}
		}
	})
}
