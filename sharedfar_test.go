package drip_test

import (
	"fmt"
	"math"
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
		"windows":  {Size: 100_000, RefreshRate: 1, Windows: []drip.Window{{Size: 100_000, RefreshInterval: time.Minute}}},
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
	o := drip.Options{
		Size: 1 + r.IntN(40), RefreshInterval: time.Duration(100+r.IntN(3000)) * time.Millisecond, Concurrency: 1 + r.IntN(20),
		Shared: shared, Lease: time.Hour,
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
	const begin = 1_700_000_000_000
	takes := map[*buckettest.Call]int64{}
	load := buckettest.Load{
		Options: o, End: math.MaxInt64,
		Late: func() int64 { return int64(len(answers) % 20) },
		Runs: func(c *buckettest.Call, now int64) int64 { return now + takes[c] },
		Answer: func(c *buckettest.Call, a drip.Admission, now int64) {
			answers = append(answers, fmt.Sprint(c.Entity, now-begin, a.Delay, a.Bound, a.Limit))
		},
	}
	costs, urgent, at := 1+r.IntN(3), r.IntN(3), int64(begin)
	for range 300 {
		at += r.Int64N(150)
		c := &buckettest.Call{At: at, Request: drip.Request{Cost: 1 + r.IntN(min(costs, o.Size)), Urgent: r.IntN(10) < urgent}}
		takes[c] = 1 + r.Int64N(500)
		if seed%4 == 0 {
			takes[c] *= 10
		}
		c.Entity = fmt.Sprint("shop", r.IntN(shops))
		load.Calls = append(load.Calls, c)
	}
	load.Play(t)
	return answers
}
