package batch

import (
	"fmt"
	"testing"
	"time"
)

func at(i int) time.Time { return time.UnixMilli(int64(i)) }

// A turn of a group has calls of all its entities, however many one of them has, in the order of each.
func TestTurnsAreFair(t *testing.T) {
	for _, entities := range []int{1, 2, 50, 128, 200} {
		var calls []*Call
		for i := range 1000 {
			calls = append(calls, &Call{Key: "noisy", until: at(i)})
		}
		for i := range 10 * entities {
			calls = append(calls, &Call{Key: fmt.Sprint("quiet", i%entities), until: at(i)})
		}
		taken, rest := fair(calls)
		if len(taken) != mostCalls || len(taken)+len(rest) != len(calls) {
			t.Fatalf("%d entities: %d calls taken, %d left of %d", entities, len(taken), len(rest), len(calls))
		}
		counts, last := map[string]int{}, map[string]*Call{}
		for _, c := range append(taken[:mostCalls:mostCalls], rest...) {
			if l := last[c.Key]; l != nil && !c.until.After(l.until) {
				t.Fatalf("%d entities: the calls of %s are in another order", entities, c.Key)
			}
			last[c.Key] = c
		}
		for _, c := range taken {
			counts[c.Key]++
		}
		if want := min(entities+1, mostCalls); len(counts) != want {
			t.Errorf("%d entities: a turn has calls of %d, want %d", entities, len(counts), want)
		}
	}
}
