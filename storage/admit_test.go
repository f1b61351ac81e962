package storage_test

import (
	"testing"

	"github.com/drip-go/drip/storage"
)

// entity drives one entity by hand.
type entity struct {
	t *testing.T
	l storage.Limits
	s storage.State
}

const second = 1000

// begin is the beginning of an interval of each length the tests use.
const begin = 1_700_006_400_000

func newEntity(t *testing.T, l storage.Limits) *entity {
	if l.RefreshInterval == 0 {
		l.RefreshInterval = second
	}
	if l.Lease == 0 {
		l.Lease, l.MaxLease = 60*second, 3600*second
	}
	if l.WaitForToken == 0 {
		l.WaitForToken = 50
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	return &entity{t, l, l.New()}
}

func perSecond(size, rate int64) storage.Limits {
	return storage.Limits{Window: storage.Window{Size: size, RefreshRate: rate, RefreshInterval: second}}
}

func (e *entity) do(op storage.Op, now int64) storage.Answer { return apply(&e.l, &e.s, op, begin+now) }

func (e *entity) admit(now, cost int64, t storage.Ticket) storage.Answer {
	return e.do(storage.Op{Kind: storage.Admit, Cost: cost, Ticket: t}, now)
}

// runs admits and fails the test if it is postponed.
func (e *entity) runs(now, cost int64, t storage.Ticket) storage.Lease {
	e.t.Helper()
	a := e.admit(now, cost, t)
	if a.Delay != 0 {
		e.t.Fatalf("at %d a cost of %d is postponed by %d because of %d", now, cost, a.Delay, a.Bound)
	}
	return a.Lease
}

// waits admits and fails the test if it is not postponed by delay.
func (e *entity) waits(now, cost int64, t storage.Ticket, delay int64) storage.Ticket {
	e.t.Helper()
	a := e.admit(now, cost, t)
	if a.Delay != delay {
		e.t.Fatalf("at %d a cost of %d is postponed by %d because of %d, want %d", now, cost, a.Delay, a.Bound, delay)
	}
	return a.Ticket
}

var newcomer storage.Ticket

// A newcomer does not take a promised slot, and a ticket finds its room even when it is late.
func TestBookedSlotsAreKept(t *testing.T) {
	l := perSecond(2, 2)
	l.Concurrency = 100
	e := newEntity(t, l)
	e.runs(0, 1, newcomer)
	e.runs(0, 1, newcomer)
	first := e.waits(0, 1, newcomer, 1000)
	second := e.waits(0, 1, newcomer, 1000)
	third := e.waits(0, 1, newcomer, 2000)
	e.waits(1100, 1, newcomer, 900) // both places of this second are booked, one of the next
	e.waits(1100, 1, newcomer, 1900)
	e.runs(1200, 1, second)
	e.runs(1900, 1, first)
	e.runs(2000, 1, third)
}

// Tickets that are lost cost no more than their slots, whichever book they are in.
func TestLostTicketsOfBothBooks(t *testing.T) {
	l := perSecond(2, 2)
	l.Concurrency = 100
	l.Windows = []storage.Window{{Size: 100, RefreshRate: 100, RefreshInterval: 3600 * second}} // or all would be forgotten
	e := newEntity(t, l)
	e.runs(0, 2, newcomer)
	e.waits(0, 1, newcomer, 1000)
	e.waits(100, 1, newcomer, 900) // in the second book
	e.waits(200, 1, newcomer, 1800)
	e.waits(2500, 2, newcomer, 1500) // all that was booked may still come
	e.runs(60_000, 2, newcomer)
}

// Without a ticket outstanding Admit says what GetDelay says, on any entity.
func FuzzAdmitAgreesWithGetDelay(f *testing.F) {
	f.Add(int64(5), int64(3), []byte{0, 1, 2, 3, 200, 100, 9, 1, 1, 1})
	f.Add(int64(40), int64(2), []byte{200, 0, 0, 0, 0, 64, 64, 255, 0, 17, 99})
	f.Fuzz(func(t *testing.T, size, rate int64, steps []byte) {
		l := perSecond(size, rate)
		l.WaitForToken, l.Lease, l.MaxLease = 50, 1000, 1000
		if l.Validate() != nil {
			t.Skip()
		}
		s, now := l.New(), int64(begin)
		for i, b := range steps {
			now += int64(b%64) * 20
			if b >= 128 {
				giveBack(&l, &s)
				continue
			}
			other := s.Clone()
			got := apply(&l, &other, storage.Op{Kind: storage.Admit, Cost: 1}, now)
			if want := apply(&l, &s, storage.Op{Kind: storage.GetDelay}, now); got.Delay != want.Delay || got.Bound != want.Bound {
				t.Fatalf("step %d at %d: Admit says %+v, GetDelay %+v", i, now, got, want)
			}
		}
	})
}

// FuzzAdmit drives entities through any operations and checks the hard limit (A1), as a provider counts it who
// knows what every operation really cost: tickets may be lost, late, forged, come twice; leases too.
func FuzzAdmit(f *testing.F) {
	f.Add(int64(5), int64(3), int64(9), int64(1), []byte{0, 10, 20, 30, 200, 100, 90, 1, 1, 1, 77, 78, 79})
	f.Add(int64(2), int64(2), int64(20), int64(0), []byte{0, 0, 0, 0, 64, 65, 128, 129, 1, 2, 3, 192, 193, 80, 81, 82})
	f.Add(int64(40), int64(2), int64(7), int64(3), []byte{8, 8, 8, 136, 200, 201, 202, 8, 72, 73, 74, 75, 8, 8})
	f.Fuzz(func(t *testing.T, size, rate, further, concurrency int64, steps []byte) {
		l := perSecond(size, rate)
		l.Windows = []storage.Window{{Size: further, RefreshRate: further, RefreshInterval: 5 * second}}
		l.Concurrency, l.WaitForToken, l.Lease, l.MaxLease = concurrency, 50, 700, 2000
		if l.Validate() != nil || max(size, rate, further, concurrency) > 1<<30 {
			t.Skip()
		}
		if concurrency == 0 {
			concurrency = size
		}
		type run struct{ at, cost int64 }
		var (
			s       = l.New()
			now     = int64(begin)
			runs    []run
			tickets []storage.Ticket
			leases  []storage.Lease
			runOf   = map[int64]int{} // by the lease
		)
		if len(steps) > 400 {
			steps = steps[:400]
		}
		for i, b := range steps {
			n := int64(b & 31)
			op := storage.Op{Kind: storage.Admit, Cost: 1 + n%min(size, further, 8)}
			switch b >> 5 {
			case 0:
			case 1:
				now += 40 * n
			case 2:
				if len(tickets) > 0 {
					op.Ticket = tickets[int(n)%len(tickets)]
					now = max(now, op.Ticket.Slot+n%3*300)
				}
			case 3:
				op.Ticket = storage.Ticket{Slot: now - 2000 + n*100, Epoch: now - n*100, Cost: n - 5}
			case 4, 5:
				if len(leases) == 0 {
					continue
				}
				op.Lease = leases[int(n)%len(leases)]
				op.Kind, op.Cost = storage.Settle, n%(op.Lease.Cost+1)
			case 6:
				op.Kind = []storage.Kind{storage.GetDelay, storage.ReturnToken, storage.Renew, storage.Cancel}[n%4]
				if len(leases) > 0 {
					op.Lease = leases[int(n)%len(leases)]
				}
			case 7:
				op.Kind = []storage.Kind{storage.Throttle, storage.Pause, storage.Resume, storage.Reset}[n%4]
				op.For = n * 100
			}
			before := s.Clone()
			a := apply(&l, &s, op, now)
			switch {
			case op.Kind != storage.Admit && op.Kind != storage.GetDelay:
				if a.Found && op.Kind == storage.Settle {
					runs[runOf[op.Lease.ID]].cost = op.Cost
				} else if a.Found && op.Kind == storage.Cancel && op.Lease.ID != 0 {
					runs[runOf[op.Lease.ID]].cost = 0
				}
			case a.Delay < 0:
				t.Fatalf("step %d: a delay of %d", i, a.Delay)
			case a.Delay > 0:
				if s.Ops != before.Ops && before.Until > now {
					t.Fatalf("step %d: a postponement changed what has run", i)
				}
				if op.Kind == storage.Admit {
					tickets = append(tickets, a.Ticket)
				}
			default:
				if op.Kind == storage.GetDelay {
					op.Cost = 1
				} else {
					runOf[a.Lease.ID] = len(runs)
					leases = append(leases, a.Lease)
				}
				runs = append(runs, run{now, op.Cost})
				if n := s.InUse + int64(len(s.Booking.Leases)); n > concurrency {
					t.Fatalf("step %d: %d tokens are out, %d may be", i, n, concurrency)
				}
			}
		}
		for _, w := range append(l.Windows, l.Window) {
			for first := range runs {
				sum := int64(0)
				for _, r := range runs[first:] {
					sum += r.cost
					refreshes := r.at/w.RefreshInterval - runs[first].at/w.RefreshInterval
					if allowed := w.Size + refreshes*w.RefreshRate; sum > allowed {
						t.Fatalf("from %d to %d, with %d refreshes, %d ran, allowed are %d", runs[first].at, r.at, refreshes, sum, allowed)
					}
				}
			}
		}
	})
}
