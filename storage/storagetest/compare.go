package storagetest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/drip-go/drip/storage"
)

// Compare does random operations with random limits on a few keys of the backend, and on states of its own with
// [storage.Limits.Apply]. It fails t at the first answer that differs. The same seed is the same run; different seeds
// use different keys.
func Compare(t testing.TB, a storage.Atomic, seed uint64, steps int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	pick := func(values ...int64) int64 { return values[rnd.IntN(len(values))] }
	window := func() storage.Window {
		return storage.Window{
			Size:            1 + rnd.Int64N(pick(1, 5, 50)),
			RefreshRate:     1 + rnd.Int64N(pick(1, 5, 50)),
			RefreshInterval: pick(1, 7, 100, 1000, 60_000, 86_400_000),
		}
	}
	l := storage.Limits{
		Window: window(), Concurrency: pick(0, 0, 1, 3, 50), WaitForToken: pick(1, 10, 50, 2500),
		Start: 1_500_000_000_000 + rnd.Int64N(10_000), Lease: pick(1, 1000, 60_000), MaxLease: pick(60_000, 3_600_000),
	}
	for range pick(0, 0, 0, 1, 2) {
		l.Windows = append(l.Windows, window())
	}
	classic := rnd.IntN(4) == 0 // nothing but GetDelay and ReturnToken
	type entity struct {
		key     string
		state   storage.State
		known   bool
		tickets []storage.Ticket
		leases  []storage.Lease
	}
	entities := make([]entity, 3)
	for i := range entities {
		entities[i] = entity{key: fmt.Sprintf("%d-%c", seed, 'a'+i), state: l.New()}
	}
	now := l.Start + rnd.Int64N(3*l.RefreshInterval)
	// A backend may forget an entity from its Until on, whenever it likes. That changes no answer as long as the time does
	// not step back and the limits stay: either they do, or nobody asks again about an entity that may be forgotten.
	steady, renewed := rnd.IntN(2) == 0, 0
	for step := range steps {
		for i := range entities {
			if e := &entities[i]; !steady && e.known && now >= e.state.Until {
				renewed++
				*e = entity{key: fmt.Sprintf("%d-%c%d", seed, 'a'+i, renewed)}
			}
			if e := &entities[i]; !e.known {
				e.state = l.New()
			}
		}
		e := &entities[rnd.IntN(len(entities))]
		op := storage.Op{Now: now, Cost: 1 + rnd.Int64N(l.Size), For: pick(1, 500, 30_000)}
		for _, w := range l.Windows {
			op.Cost = min(op.Cost, w.Size)
		}
		switch dice := rnd.IntN(100); {
		case classic && dice < 70:
		case classic:
			op.Kind = storage.ReturnToken
		case dice < 5:
		case dice < 10:
			op.Kind = storage.ReturnToken
		case dice < 55:
			op.Kind = storage.Admit
			if n := len(e.tickets); n > 0 && rnd.IntN(3) > 0 {
				i := rnd.IntN(min(n, 3))
				op.Ticket = e.tickets[i]
				if rnd.IntN(50) > 0 { // or it comes twice
					e.tickets = append(e.tickets[:i], e.tickets[i+1:]...)
				}
				// A slot may be in the year 4000, which need not be in the range of a backend.
				if now < op.Ticket.Slot && op.Ticket.Slot < 1<<42 && rnd.IntN(4) > 0 {
					now = op.Ticket.Slot + pick(0, 0, 3, l.RefreshInterval)
					op.Now = now
				}
			}
			if rnd.IntN(50) == 0 {
				op.Ticket = storage.Ticket{Slot: now + rnd.Int64N(10_000) - 5000, Epoch: now - rnd.Int64N(3), Cost: rnd.Int64N(9) - 3, Number: rnd.Int64N(20) - 5, Again: rnd.Int64N(3)}
			}
		case dice < 85 && len(e.leases) > 0:
			i := rnd.IntN(len(e.leases))
			op.Kind, op.Lease = storage.Settle, e.leases[i]
			if rnd.IntN(10) > 0 {
				e.leases = append(e.leases[:i], e.leases[i+1:]...)
			}
			if rnd.IntN(2) == 0 {
				op.Cost = op.Lease.Cost
			}
		case dice < 90 && len(e.leases) > 0:
			op.Kind, op.Lease = storage.Renew, e.leases[rnd.IntN(len(e.leases))]
		case dice < 94 && len(e.leases)+len(e.tickets) > 0:
			op.Kind = storage.Cancel
			if len(e.leases) > 0 {
				op.Lease = e.leases[0]
			} else {
				op.Ticket = e.tickets[0]
			}
		case dice < 95:
			op.Kind = storage.Throttle
		case dice < 96:
			op.Kind = storage.Pause
		case dice < 97:
			op.Kind = storage.Resume
		case dice < 98:
			op.Kind = storage.Reset
		case steady:
		default:
			l.Concurrency = pick(0, 1, 3, 50)
			if !classic && rnd.IntN(2) == 0 {
				l.Window = window()
				op.Cost = min(op.Cost, l.Size)
			}
		}
		before := e.state.Clone()
		var want storage.Answer
		if e.known || !op.Kind.OnKnown() {
			l.Apply(&e.state, &op, now, &want)
			e.known = true
		}
		got, err := a.Do(t.Context(), e.key, &l, op)
		if err != nil {
			t.Fatalf("seed %d step %d: %+v: %v", seed, step, op, err)
		}
		if got != want {
			t.Fatalf("seed %d step %d: %+v with %+v on %+v %+v\n     = %+v\nApply: %+v", seed, step, op, l, before, before.Booking, got, want)
		}
		if want.Ticket != (storage.Ticket{}) {
			e.tickets = append(e.tickets, want.Ticket)
		}
		if op.Kind == storage.Admit && want.Lease != (storage.Lease{}) {
			e.leases = append(e.leases, want.Lease)
		}
		switch rnd.IntN(6) {
		case 0:
			now += rnd.Int64N(3 * l.RefreshInterval)
		case 1, 2:
			now += rnd.Int64N(l.WaitForToken + 1)
		case 3:
			if !steady && rnd.IntN(10) == 0 { // the clock steps back
				now -= rnd.Int64N(2 * l.RefreshInterval)
			}
		}
	}
}
