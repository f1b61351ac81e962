// Package attacks tries to break a limit: through the public calls of package drip, on any storage, in virtual time.
//
// Each attack is a test of its own below [Run], named by the rule that it tries to break. The root package, and each
// backend, runs all of them.
package attacks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
)

// Run runs all attacks as subtests. Each opens a storage of its own. Attacks with many callers use n of them: 100,000 in
// memory, fewer where a decision is a round trip.
func Run(t *testing.T, n int, open func(t *testing.T) storage.Storage) {
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) { a.try(t, &target{n: n, open: open}) })
	}
}

type attack struct {
	name string
	try  func(t *testing.T, g *target)
}

// target makes the buckets that an attack tries to break.
type target struct {
	n    int
	open func(t *testing.T) storage.Storage
}

// shop is an entity of a bucket whose clock the attack sets.
type shop struct {
	*drip.Bucket
	t   *testing.T
	now time.Time
}

// noon begins an interval of each length that the attacks use.
var noon = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// shop makes a bucket with a storage of its own, and full entities.
func (g *target) shop(t *testing.T, o drip.Options) *shop {
	t.Helper()
	s := &shop{t: t, now: noon}
	o.Storage, o.Start, o.Clock = g.open(t), time.Unix(0, 0), func() time.Time { return s.now }
	var err error
	s.Bucket, err = drip.New(o)
	s.ok(err)
	return s
}

func (s *shop) pass(d time.Duration) { s.now = s.now.Add(d) }

func (s *shop) ok(err error) {
	s.t.Helper()
	oktest.OK(s.t, err)
}

func (s *shop) admitOf(entity string, cost int, ticket drip.Ticket) drip.Admission {
	s.t.Helper()
	a, err := s.Admit(context.Background(), entity, drip.Request{Cost: cost, Ticket: ticket})
	s.ok(err)
	return a
}

func (s *shop) admit(cost int) drip.Admission { return s.admitOf("shop", cost, drip.Ticket{}) }

// runs admits a newcomer that has to run.
func (s *shop) runs(cost int) drip.Lease {
	s.t.Helper()
	a := s.admit(cost)
	if a.Delay != 0 {
		s.t.Fatalf("a cost of %d waits %v for %v, want it to run", cost, a.Delay, a.Bound)
	}
	return a.Lease
}

// waits admits a newcomer that must not run.
func (s *shop) waits() drip.Admission {
	s.t.Helper()
	a := s.admit(1)
	if a.Delay == 0 {
		s.t.Fatal("it ran, want it to wait")
	}
	return a
}

func (s *shop) settle(l drip.Lease, cost int) {
	s.t.Helper()
	s.ok(s.Settle(context.Background(), "shop", l, cost))
}

func (s *shop) getDelay() time.Duration {
	s.t.Helper()
	d, err := s.GetDelay(context.Background(), "shop")
	s.ok(err)
	return d
}

func (s *shop) returnToken() {
	s.t.Helper()
	s.ok(s.ReturnToken(context.Background(), "shop"))
}

// burst counts how many newcomers of one unit run now, of at most that many. They are settled at once.
func (s *shop) burst(most int) (ran int) {
	s.t.Helper()
	for range most {
		a := s.admit(1)
		if a.Delay > 0 {
			return ran
		}
		s.settle(a.Lease, 1)
		ran++
	}
	return ran
}

// hops counts the postponements of one caller until it runs, of at most that many.
func (s *shop) hops(most int, ask func() time.Duration) int {
	s.t.Helper()
	for n := range most {
		d := ask()
		if d == 0 {
			return n
		}
		s.pass(d)
	}
	s.t.Fatalf("a caller came %d times and did not run", most)
	return most
}

// every returns n messages of one unit that come evenly between two times after noon.
func every(n int, from, to time.Duration) (all []*buckettest.Call) {
	for i := range n {
		at := from + (to-from)*time.Duration(i)/time.Duration(n)
		all = append(all, &buckettest.Call{At: noon.Add(at).UnixMilli(), Entity: "shop"})
	}
	return all
}

// play delivers messages until a time after noon, each again after its delay. Operations take no time.
func (s *shop) play(until time.Duration, groups ...[]*buckettest.Call) {
	s.t.Helper()
	load := buckettest.Load{Calls: slices.Concat(groups...), End: noon.Add(until).UnixMilli() + 1}
	load.PlayOn(s.t, s.Bucket, func(now int64) { s.now = time.UnixMilli(now) })
}

// wantAll fails the test unless all of the messages ran by a time after noon.
func wantAll(t *testing.T, what string, all []*buckettest.Call, by time.Duration) {
	t.Helper()
	if got := buckettest.OutcomeOf(all); got.Ran < len(all) || got.Last > noon.Add(by).UnixMilli() {
		t.Errorf("%s: %d of %d ran, the last at %v; want all by %v", what, got.Ran, len(all), time.UnixMilli(got.Last).Sub(noon), by)
	}
}

// wantSoon fails the test unless each of the messages ran within five seconds.
func wantSoon(t *testing.T, what string, all []*buckettest.Call) {
	t.Helper()
	if got := buckettest.OutcomeOf(all); got.Longest > 5*time.Second {
		t.Errorf("%s: %d of %d newcomers ran, the longest wait is %v; want at most 5s", what, got.Ran, len(all), got.Longest)
	}
}

func isNoLease(err error) error {
	if !errors.Is(err, drip.ErrNoLease) {
		return fmt.Errorf("got %v, want ErrNoLease", err)
	}
	return nil
}
