// Package decision holds the rules of drip, and nothing else: the limits and the state of an entity, an operation and a
// time go in, an answer and the next state come out. Package drip is the way to use them; a backend of package storage
// calls [Limits.Apply] and keeps the result.
//
// The package does no I/O, reads no clock, takes no lock and imports nothing. The Lua of package storage/redis is
// generated from it, so apart from limits.go and leases.go it keeps to a small part of Go: integers below 2^53, structs,
// loops over slices, and no division of a negative number.
//
// # How an operation is decided
//
// An operation starts at the latest of several times: now, the time the entity opens, the time each window has room,
// and, for a newcomer, the time the windows have room beside everything that is promised. If that time is now and a token is free, the
// operation runs. Otherwise that time is its slot, and a ticket books it.
//
// Each window keeps two capacities. Left counts what has run, and nothing runs that does not fit it. Promised counts
// the booked slots as well, and only newcomers look at it. So bookings decide the order, never the limit.
package decision

// Never is a time that does not come.
const Never = 1<<53 - 1

// State is all that is stored of one entity, besides its leases. The zero State is an entity that nobody knows. Times are
// milliseconds since 1970.
type State struct {
	Print   int64 // the Print of the limits by which Lines were counted; 0 for an entity that nobody knows
	Now     int64 // the time of Left in Lines; time does not run before it
	Slot    int64 // the last promised slot, and the time of Promised in Lines
	Plain   int64 // tokens that GetDelay took and nobody returned yet
	LastID  int64 // the ID of the last lease
	Closed  int64 // nothing runs before this time
	Next    int64 // the number of the last ticket
	Head    int64 // about the number of the ticket that runs next, times 16
	AgainUS int64 // until this time, in microseconds, tokens go to tickets that were denied one
	Held    int64 // the sum of the times that operations held their leases
	Ended   int64 // the number of operations in Held
	Saved   int64 // the average part of an estimate that comes back when it is settled, in 4096ths
	Lines   []Line
}

// Line is the state of one window.
type Line struct {
	Left      int64 // the capacity that is left at State.Now; below zero it is owed
	Promised  int64 // the capacity that is left at State.Slot after all promises
	Spare     int64 // the part of this interval that newcomers may take although it is promised
	Taken     int64 // the part of Spare that they took
	Fresh     int64 // the most that leases with an ID above FreshFrom may give back
	FreshFrom int64
	Stale     int64 // the most that older leases with an ID above StaleFrom may give back; others give back nothing
	StaleFrom int64
}

// Kind says what an Op does.
type Kind int64

// The kinds of operations. Each lists the fields of Op that it reads and the fields of Answer that it sets.
const (
	// GetDelay decides for a caller without a ticket, who returns a plain token. It sets Delay and Bound.
	GetDelay Kind = iota
	// ReturnToken gives back one plain token. It sets Found if one was out.
	ReturnToken
	// Admit decides for a caller who can carry a ticket. It reads Cost and Ticket. It sets Delay and Bound, and the
	// Lease of an operation that runs or the Ticket of one that is postponed.
	Admit
	// Settle gives back Lease and charges the real Cost. It sets Found.
	Settle
	// Cancel undoes an Admit: it gives back Lease with its whole cost, and the slot of Ticket. It sets Found.
	Cancel
	// Renew makes Lease as long as a new one, up to Limits.MaxLease. It sets Lease and Found.
	Renew
	// Throttle closes the entity for the time For and drops the capacity it has gathered.
	Throttle
	// Pause closes the entity for the time For.
	Pause
	// Resume ends what Throttle and Pause began.
	Resume
	// Reset ends all leases, returns all plain tokens, forgets all tickets and opens the entity. What has run stays
	// counted.
	Reset
)

// OwnClock as an Op's Now asks the backend to decide by its own clock.
const OwnClock = -1 << 63

// Op is one operation on an entity.
type Op struct {
	Kind   Kind
	Now    int64 // ms since 1970, or OwnClock
	Cost   int64
	For    int64 // ms
	Ticket Ticket
	Lease  Lease
}

// Answer is the outcome of an Op.
type Answer struct {
	Delay  int64 // ms by the clock of the caller; 0: run
	Bound  Bound // the cause of Delay
	Found  bool
	Ticket Ticket
	Lease  Lease
}

// Ticket is a booked slot. It travels with the message and may be forged there: only the order depends on it. The zero
// Ticket is a newcomer's.
type Ticket struct {
	Slot   int64 // when it is due
	Number int64 // its place among all tickets of the entity; 0 if it has none
	Again  int64 // 1 if it was due once and a window denied it
	Cost   int64 // the cost that was booked
}

// Lease is a token with an identity and an end. IDs grow in the order of the leases and are unique in their entity.
type Lease struct {
	ID    int64
	Begin int64
	End   int64
	Cost  int64 // the cost that was charged
}

// Bound is the cause of a delay.
type Bound int64

// The causes of a delay.
const (
	BoundNone   Bound = iota // nothing: run
	BoundClosed              // Throttle or Pause
	BoundTokens              // all tokens are out, or others wait for one
	BoundBooked              // the capacity that is left is booked
	BoundWindow              // the first window is used up; those after it follow
)

// Apply does op at the time now, sets the answer a, which is zero before, and turns s and leases into what is to be stored.
// A State that is zero afterwards needs no storing.
func (l *Limits) Apply(s *State, leases Leases, op *Op, now int64, a *Answer) {
	switch op.Kind {
	case GetDelay:
		l.getDelay(s, leases, now, a)
	case Admit:
		l.admit(s, leases, op, now, a)
	case ReturnToken:
		if s.Plain > 0 {
			s.Plain--
			a.Found = true
		}
	case Settle:
		if leases.Release(&op.Lease, max(now, s.Now)) {
			l.settle(s, leases, &op.Lease, op.Cost, now)
			a.Found = true
		}
	case Cancel:
		if leases.Release(&op.Lease, max(now, s.Now)) {
			l.advance(s, leases, now)
			l.charge(s, &op.Lease, 0)
			a.Found = true
		}
		if op.Ticket.Number > 0 && op.Ticket.Number <= s.Next {
			l.unbook(s, leases, &op.Ticket, now)
			a.Found = true
		}
	case Renew:
		if leases.Release(&op.Lease, max(now, s.Now)) {
			a.Lease = op.Lease
			a.Lease.End = min(max(now, s.Now)+l.Lease, op.Lease.Begin+l.MaxLease)
			leases.Hold(a.Lease.ID, a.Lease.End)
			a.Found = a.Lease.End > now
		}
	case Throttle:
		l.throttle(s, leases, now, op.For)
	case Pause:
		l.pause(s, leases, now, op.For)
	case Resume:
		if s.Print != 0 {
			l.resume(s, leases, now)
		}
	case Reset:
		leases.Clear()
		if s.Print != 0 {
			l.reset(s, leases, now)
		}
	}
}

// Undo is the operation that gives back what o has taken with the answer a, for a caller who left before it came. It
// reports whether there is any.
func (o *Op) Undo(a *Answer) (undo Op, any bool) {
	switch {
	case o.Kind == Admit:
		return Op{Kind: Cancel, Now: o.Now, Lease: a.Lease, Ticket: a.Ticket}, true
	case o.Kind == GetDelay && a.Delay == 0:
		return Op{Kind: ReturnToken, Now: o.Now}, true
	}
	return Op{}, false
}
