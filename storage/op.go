package storage

import "errors"

// Kind says what an Op does.
type Kind uint8

// What can be done with an entity. Each lists the fields of Op that it reads and those of Answer that it sets.
const (
	// GetDelay decides for a caller without a ticket, who returns a plain token. Sets Delay and Bound.
	GetDelay Kind = iota
	// ReturnToken gives one plain token back. Sets Found: there was one out.
	ReturnToken
	// Admit decides for a caller who can carry a ticket. Reads Cost and Ticket; sets Delay and Bound, and the Lease
	// of what runs or the Ticket of what is postponed.
	Admit
	// Settle gives a lease back and charges the real Cost in place of the one it had. Reads Lease and Cost; sets
	// Found.
	Settle
	// Cancel undoes an Admit that was not used: it gives back Lease with all it cost, and takes Ticket off the books.
	// Sets Found.
	Cancel
	// Renew makes a lease last as long as a new one, up to MaxLease. Reads Lease; sets Lease and Found.
	Renew
	// Throttle closes the entity for the time For and drops its spare capacity.
	Throttle
	// Pause closes the entity for the time For, and Resume opens it.
	Pause
	Resume
	// Reset takes back all tokens and forgets all tickets, and opens the entity. What has run stays counted.
	Reset
)

// Op is one operation on the state of an entity.
type Op struct {
	Kind   Kind
	Now    int64 // ms since 1970; OwnClock for the time of the backend
	Cost   int64
	Ticket Ticket
	Lease  Lease
	For    int64 // ms
}

// OwnClock as an Op's Now asks the backend to decide by its own clock, which processes that share the backend share
// too.
const OwnClock = -1 << 63

// Answer is what came of an Op.
type Answer struct {
	Delay  int64 // ms; 0: run
	Bound  Bound
	Found  bool
	Ticket Ticket
	Lease  Lease
}

// Bound says what a delay comes from.
type Bound int8

// What may stand in the way, in the order it is looked for.
const (
	BoundNone   Bound = iota // nothing: run
	BoundClosed              // the entity is throttled or paused
	BoundTokens              // all tokens are out, or promised to those who wait for one
	BoundBooked              // what is left is booked by others
	BoundWindow              // the first window is used up; those of Limits.Windows come after it
)

// Ticket is a booked slot. It travels with what was postponed, and may be forged on the way: nothing depends on it but
// who comes first.
type Ticket struct {
	Slot   int64 // when it is due, ms since 1970
	Epoch  int64 // which of the entity's books it is in: when that was begun; 0 only in the zero Ticket
	Cost   int64 // what was booked
	Number int64 // of how many tickets it is the last
	Again  int64 // 1 if it was back once and found no room
}

// Lease is a token with an identity and an end.
type Lease struct {
	ID    int64 // one more than the last of the entity, and never one of before it was forgotten
	Begin int64 // ms since 1970
	End   int64
	Cost  int64 // what it was charged
	Left  int64 // capacity that was left in the first window then
}

// ErrCost is the error of a cost that is below zero, or more than a window ever holds.
var ErrCost = errors.New("the cost is negative or more than a window ever holds")

// Apply does op at the time now, in milliseconds since 1970, turns s into the next state and sets a, which is zero
// before. It looks at nothing but its arguments, and is defined for all of them, valid limits and a possible op
// provided.
func (l *Limits) Apply(s *State, op *Op, now int64, a *Answer) {
	if op.Kind.Timed() && now >= s.Until && s.InUse == 0 {
		l.forget(s) // as a backend may have done before
	}
	now = max(now, s.Ops.Last)
	if s.Booking != nil || len(l.Windows) > 0 || op.Kind == Admit {
		l.booking(s)
		if op.Kind.Timed() {
			l.adopt(s, now)
			l.tidy(s, now)
		}
	}
	switch op.Kind {
	case GetDelay, Admit:
		l.decide(s, op, now, a)
	case ReturnToken:
		if a.Found = s.InUse > 0; a.Found {
			s.InUse--
		}
	case Settle:
		a.Found = l.settle(s, &op.Lease, op.Cost, now)
	case Cancel:
		a.Found = l.cancel(s, op, now)
	case Renew:
		a.Lease, a.Found = l.renew(s, op.Lease, now)
	case Throttle:
		l.throttle(s, add(now, op.For), now)
	case Pause:
		l.booking(s).Closed = add(now, op.For)
	case Resume:
		if s.Booking != nil {
			s.Booking.Closed = 0
		}
	case Reset:
		s.InUse = 0
		if s.Booking != nil {
			l.reset(s, now)
		}
	}
	s.Until = l.until(s)
}

// Undo is the operation that gives back what o has taken with this answer, for backends whose caller has left before it
// came. needed is false when that is nothing.
func (o *Op) Undo(a *Answer) (undo Op, needed bool) {
	switch {
	case o.Kind == Admit:
		return Op{Kind: Cancel, Now: o.Now, Lease: a.Lease, Ticket: a.Ticket}, true
	case o.Kind == GetDelay && a.Delay == 0:
		return Op{Kind: ReturnToken, Now: o.Now}, true
	}
	return Op{}, false
}

// Timed reports whether the time matters to an Op of this kind.
func (k Kind) Timed() bool { return k != ReturnToken }

// OnKnown reports whether an Op of this kind does nothing for an entity under which nothing is stored. A backend then
// returns the zero Answer and stores nothing.
func (k Kind) OnKnown() bool {
	return k == ReturnToken || k == Settle || k == Cancel || k == Renew || k == Resume || k == Reset
}
