package drip_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A shared limit that is far from short changes no answer, whatever limits the entities themselves have. It is so by its
// rate, by the capacity that has gathered, or by its tokens.
func TestFarSharedChangesNothing(t *testing.T) {
	for name, app := range map[string]drip.Limit{
		"rate":     {Size: 100_000},
		"gathered": {Size: 100_000, RefreshRate: 1},
		"tokens":   {Concurrency: 3}, // for each one that an entity may use

		"windows": {Size: 100_000, RefreshRate: 1, Windows: []drip.Window{{Size: 100_000, RefreshInterval: time.Minute}}},
	} {
		for seed := range uint64(60) {
			alone, within := farAnswers(t, seed, nil), farAnswers(t, seed, map[string]drip.Limit{"app": app})
			if !slices.Equal(alone, within) {
				i := 0
				for i < min(len(alone), len(within)) && alone[i] == within[i] {
					i++
				}
				t.Errorf("%s, seed %d: of %d and %d answers the first %d are the same", name, seed, len(alone), len(within), i)
			}
		}
	}
}

// farAnswers returns the answers to 300 operations of one to five entities with random limits. Messages come back up to 20 ms late.
func farAnswers(t *testing.T, seed uint64, shared map[string]drip.Limit) (answers []string) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	begin := time.UnixMilli(1_700_000_000_000)
	now := begin
	o := drip.Options{
		Size: 1 + r.IntN(40), RefreshInterval: time.Duration(100+r.IntN(3000)) * time.Millisecond, Concurrency: 1 + r.IntN(20),
		Clock: func() time.Time { return now }, Start: time.UnixMilli(0), Shared: shared, Lease: time.Hour,
	}
	o.RefreshRate = 1 + r.IntN(o.Size)
	if r.IntN(2) == 0 {
		o.Windows = []drip.Window{{Size: 60 + r.IntN(300), RefreshInterval: time.Minute}}
	}
	shops := 1 + r.IntN(5)
	for name, limit := range shared {
		limit.Concurrency *= shops * o.Concurrency
		o.Shared = map[string]drip.Limit{name: limit}
	}
	b := buckettest.New(t, o)
	type event struct {
		at time.Time
		do func()
	}
	var events []event
	add := func(at time.Time, do func()) {
		i, _ := slices.BinarySearchFunc(events, at, func(e event, at time.Time) int {
			if e.at.After(at) {
				return 1
			}
			return -1
		})
		events = slices.Insert(events, i, event{at, do})
	}
	var ask func(shop string, request drip.Request, takes time.Duration)
	ask = func(shop string, request drip.Request, takes time.Duration) {
		a := buckettest.Admit(t, b, shop, request)
		answers = append(answers, fmt.Sprint(shop, now.Sub(begin), a.Delay, a.Bound, a.Limit))
		if a.Delay > 0 {
			request.Ticket = a.Ticket
			add(now.Add(a.Delay+time.Duration(len(answers)%20)*time.Millisecond), func() { ask(shop, request, takes) })
			return
		}
		add(now.Add(takes), func() {
			if err := b.Settle(t.Context(), shop, a.Lease, request.Cost); err != nil {
				t.Error(err)
			}
		})
	}
	costs, urgent, at := 1+r.IntN(3), r.IntN(3), now
	for range 300 {
		at = at.Add(time.Duration(r.IntN(150)) * time.Millisecond)
		request := drip.Request{Cost: 1 + r.IntN(min(costs, o.Size)), Urgent: r.IntN(10) < urgent}
		takes := time.Duration(1+r.IntN(500)) * time.Millisecond
		if seed%4 == 0 {
			takes *= 10
		}
		shop := fmt.Sprint("shop", r.IntN(shops))
		add(at, func() { ask(shop, request, takes) })
	}
	for len(events) > 0 {
		e := events[0]
		events = events[1:]
		now = e.at
		e.do()
	}
	return answers
}
