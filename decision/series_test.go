package decision_test

import (
	"math/rand/v2"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Each caller takes the interval of a Series by a clock of its own, and the storage decides by another one.
// The intervals differ in length. Each of them brings its quota, and once only.
func TestSeries(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 0))
		begins := []int64{1_700_000_000_000}
		for len(begins) < 70 {
			begins = append(begins, begins[len(begins)-1]+20_000+r.Int64N(20_000))
		}
		in := func(at int64) (n int) {
			for begins[n+1] <= at {
				n++
			}
			return n
		}
		quota, skew := 1+r.Int64N(5), 1+r.Int64N(1500)
		s, leases := decision.State{}, &storage.Leases{}
		ran, asked := map[int]int64{}, map[int]int64{}
		for now := begins[1]; now < begins[58]; {
			step := int64(2000)
			if r.IntN(20) == 0 {
				step = 60_000
			}
			if now += r.Int64N(step); r.IntN(2) == 0 { // near the change of the interval
				now = max(now, begins[in(now)+1]-skew+r.Int64N(2*skew))
			}
			period := in(now - skew + r.Int64N(2*skew)) // of the caller
			l := decision.Limits{Tokens: 1 << 40, Guess: 1, Lease: 1, MaxLease: 1, Windows: []decision.Window{{
				Size: quota, Rate: quota, Interval: begins[period+1] - begins[period], Offset: begins[period], Series: 4711,
			}}}
			if field, _ := l.Ready(); field != "" {
				t.Fatal(field)
			}
			op, a := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}, decision.Answer{}
			l.Apply(&s, leases, &op, now, &a)
			if now < begins[in(now)+1]-skew { // later a caller may be in the next interval
				asked[in(now)]++
			}
			if a.Delay == 0 {
				ran[in(now)]++
				continue
			}
			undo, _ := op.Undo(&a) // no slot is booked
			l.Apply(&s, leases, &undo, now, &a)
		}
		for n := range begins {
			if ran[n] < min(asked[n], quota) || ran[n] > quota {
				t.Fatalf("seed %d: in the interval %d ran %d of %d, the quota is %d", seed, n, ran[n], asked[n], quota)
			}
		}
	}
}

// Slots that are booked in the next interval of a Series stay booked when it begins.
func TestSeriesKeepsBookings(t *testing.T) {
	e := newEntity(t, perSecond(10, 10), decision.Window{Size: 20, Rate: 20, Interval: 100_000, Offset: begin, Series: 4711})
	e.runs(0, 10, newcomer)
	e.runs(1000, 10, newcomer)
	for range 20 {
		e.admit(1000, 1, newcomer)
	}
	e.l.Windows[1].Offset += 100_000
	e.ready()
	if a := e.admit(100_000, 1, newcomer); a.Delay < 100_000 || a.Bound != decision.BoundBooked {
		t.Errorf("a newcomer waits %d because of %d, want an interval because it is booked", a.Delay, a.Bound)
	}
}
