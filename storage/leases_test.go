package storage_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// TestLeases plays random calls on Leases and on a map.
func TestLeases(t *testing.T) {
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		most := []int{2, 100, 150, 500}[rnd.IntN(4)] // some runs go beyond few, and back
		leases, model := &storage.Leases{}, map[int64]int64{}
		given, now := []decision.Lease{{}}, int64(1000)
		for step := range 1000 {
			now += rnd.Int64N(3)
			switch dice := rnd.IntN(100); {
			case dice < 50 && len(model) < most:
				h := storage.Held{ID: int64(step + 1), End: now + 1 + rnd.Int64N(2000)}
				leases.Hold(h.ID, h.End)
				model[h.ID] = h.End
				given = append(given, decision.Lease{ID: h.ID, End: h.End})
			case dice < 80:
				lease := given[rnd.IntN(len(given))]
				lease.End -= rnd.Int64N(2) * 500 // renewed since: the ID tells which it is
				end, held := model[lease.ID]
				delete(model, lease.ID)
				if got, want := leases.Release(lease.ID, lease.End, now), held && end > now; got != want {
					t.Fatalf("seed %d, step %d: Release(%+v) at %d = %t, want %t", seed, step, lease, now, got, want)
				}
			case dice < 82:
				leases = storage.NewLeases(leases.All())
			case dice < 83:
				all := leases.All()
				rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				leases = storage.NewLeases(all)
			case rnd.IntN(200) == 0:
				leases.Clear()
				clear(model)
			}
			last := int64(0)
			want := []storage.Held{}
			for id, end := range model {
				want = append(want, storage.Held{ID: id, End: end})
				last = max(last, end)
			}
			slices.SortFunc(want, func(a, b storage.Held) int {
				return cmp.Or(cmp.Compare(a.End, b.End), cmp.Compare(a.ID, b.ID))
			})
			if got := leases.All(); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: All() = %v, want %v", seed, step, got, want)
			}
			if got := leases.Last(); got < last || (got == 0) != (len(model) == 0) {
				t.Fatalf("seed %d, step %d: Last() = %d, want no less than the last end, %d", seed, step, got, last)
			}
			if rnd.IntN(3) == 0 {
				maps.DeleteFunc(model, func(_, end int64) bool { return end <= now })
				if got := leases.Out(now); got != int64(len(model)) {
					t.Fatalf("seed %d, step %d: Out(%d) = %d, want %d", seed, step, now, got, len(model))
				}
			}
		}
	}
}

// An ID of nobody's, as a stranger may send it, releases nothing, and two leases with one ID do no harm.
func TestLeasesOfNobody(t *testing.T) {
	for _, n := range []int{1, 100} {
		leases := &storage.Leases{}
		for i := range n {
			leases.Hold(int64(i+1), 1000)
			leases.Hold(int64(i+1), 2000)
		}
		if leases.Release(-7, 1000, 0) || leases.Release(0, 0, 0) {
			t.Error("Release of a lease that was never held = true, want false")
		}
		if got := leases.Out(1000); got != int64(n) {
			t.Errorf("Out after the first of two leases with one ID has ended = %d, want %d", got, n)
		}
		if got := leases.Out(2000); got != 0 || leases.Last() != 0 {
			t.Errorf("Out after all have ended = %d and Last %d, want 0 and 0", got, leases.Last())
		}
	}
}
