// Package decision holds the rules of drip, and nothing else. Its input is the limits and the state of an entity, an
// operation and a time. Its output is an answer and the next state. Programs use these rules through package drip. A
// backend of package storage calls [Limits.Apply] and keeps the result.
//
// The package does no I/O, reads no clock, takes no lock and imports nothing. Package internal/luagen generates the Lua
// of storage/redis from it. So all files but limits.go and leases.go use a small part of Go: integers below 2^53,
// structs, and loops over slices and numbers. They divide no negative number.
//
// # How an operation is decided
//
// An operation starts at the latest of these times:
//
//   - now;
//   - the time at which the entity opens, after a Throttle or a Pause;
//   - the time at which each window has room;
//   - for a newcomer, the time at which the windows have room beside all promises.
//
// If that time is now and a token is free, the operation runs. If only a token is short, its slot is the time at which a
// token is probably free. Otherwise the start is its slot. A ticket books the slot.
//
// Each window keeps two capacities. Left counts the operations that have run, and an operation runs only if Left holds
// its cost. Promised counts the booked slots as well. Newcomers look at it, and tickets that come back early. So bookings
// decide the order, never the limit.
//
// A shared limit decides as well: all limits must let the operation run, or it books the first slot that suits all. See
// [Shared].
//
// # Words
//
//   - A ticket is due from its slot on. A due ticket that finds no room in a window, or no token, is denied.
//   - Denied tickets ask again one after the other, each at its turn. State.AgainUS is the end of the last turn. Until
//     then newcomers get no token, unless they take spare capacity or are urgent. They book behind the last turn if many
//     tickets wait for a window.
//   - Spare capacity is promised, but its tickets probably do not come. Newcomers may take it.
//   - Tickets have numbers, in the order in which they wait for tokens. State.Next and State.Head tell how many wait.
//   - The pace is the average time between two returned tokens.
//   - A [Line] is the state of a window. The line that line.go speaks of is another one: the operations of one entity
//     that wait for a shared limit.
//
// # Reading order
//
//  1. decision.go has the types and Limits.ApplyWithin.
//  2. decide in admit.go is the rule above.
//  3. look in look.go finds the start.
//  4. book.go makes the ticket.
//  5. window.go and settle.go bring capacity back.
//
// Skip the rest until you need it. learned.go has the averages of operations and what follows from them. classic.go has
// the delays of GetDelay, flow.go the urgent tickets. change.go continues with changed limits. pin.go and level.go change
// the limits of a decision. newcomer.go answers without changing the state. shared.go, line.go, calendar.go and share.go
// are the shared limits: an operation without one never enters them.
package decision

// Never is a time that never comes.
const Never = 1<<53 - 1

// State is the stored state of one entity, without its leases. The zero State is an unknown entity. Times are
// milliseconds since 1970. Lines has one Line for each window, in the order of Limits.Windows.
type State struct {
	Tokens  int64 // Limits.Tokens of the last decision; 0 for an unknown entity
	Guess   int64 // Limits.Guess of the last decision; not 0 in an unknown entity whose windows are empty at its first decision
	Now     int64 // the time of Left in Lines; time does not run before it
	Slot    int64 // the last promised slot, and the time of Promised in Lines
	Plain   int64 // tokens that GetDelay took and no caller returned yet
	LastID  int64 // the ID of the last lease, so 1024 times its Begin or more; 1 if there was none, but a ticket; 0 if all callers used GetDelay
	Closed  int64 // nothing runs before this time
	Moved   int64 // by how much Closed has moved the slots, also those that are promised after it was set
	Next    int64 // the number of the last ticket
	Head    int64 // about the number of the ticket that runs next, times 16: an average, since tickets come back in any order
	AgainUS int64 // until this time, in microseconds, tokens go to tickets that were denied one
	Held    int64 // the sum of the times that operations held their leases
	Last    int64 // the time that the last one held its lease; until one has ended, when the first lease began
	Ended   int64 // the number of operations in Held
	Lines   []Line
	Pins    []Pinned // one at most

	Flows     []Flow     // one for each shared limit that an entity was within, and one for each unit of urgent tickets
	Calendars []Calendar // of a shared limit: one
}

// Line is the state of one window. FreshFrom and StaleFrom are IDs of leases. The older a lease, the less of its estimate
// may come back. The window may have been full since, and a full window holds no more.
type Line struct {
	Window    Window // of the limits of the last decision; zero if they no longer have it
	Left      int64  // the capacity that is left at State.Now; below zero it is owed
	Over      int64  // by how much operations of this interval used more than Size, because it was larger then
	Promised  int64  // the capacity that is left at State.Slot after all promises
	Spare     int64  // the promised capacity that newcomers may take, since booked operations did not use as much lately; times fades
	Taken     int64  // how much of it they took in this interval
	Largest   int64  // the largest cost that was promised of late
	LargestAt int64  // the last slot of about that cost
	Fresh     int64  // the most that leases with an ID above FreshFrom may give back
	FreshFrom int64
	Stale     int64 // the most that older leases with an ID above StaleFrom may give back; others give back nothing
	StaleFrom int64
	Saved     int64 // the part of the estimates that was not used, in 4096ths; below zero if operations cost more
	Estimated int64 // the sum of these estimates: of the first operations, then of about the last ones
}

// Kind is the kind of an Op.
type Kind int64

// The kinds of operations. Each lists the fields of Op that it reads and the fields of Answer that it sets.
const (
	// GetDelay decides for a caller without a ticket, which returns a plain token. It sets Delay, Bound and Limit.
	GetDelay Kind = iota
	// ReturnToken gives back one plain token. It sets Found if one was out.
	ReturnToken
	// Admit decides for a caller that can carry a ticket. It reads Cost, Ticket, Urgent and Deadline. It sets Delay,
	// Bound and Limit, and the Lease of an operation that runs or the Ticket of one that is postponed; or Late.
	Admit
	// Settle gives back Lease and charges the real Cost. It sets Found.
	Settle
	// Cancel undoes an Admit: it gives back Lease with its whole cost, and the slot of Ticket. It reads Urgent. It sets Found.
	Cancel
	// Renew makes Lease as long as a new one, up to Limits.MaxLease. It sets Lease and Found.
	Renew
	// Throttle closes the entity for the time For and drops the capacity it has gathered. With Op.Level above 0 it
	// lowers the entity's Level.
	Throttle
	// Pause closes the entity for the time For.
	Pause
	// Resume ends a Throttle or a Pause.
	Resume
	// Reset ends all leases, returns all plain tokens, forgets all tickets and opens the entity. Operations that have
	// run stay counted, and a Pin and a Level stay.
	Reset
	// Pin applies Op.Pin for the time For, or until Unpin if For is 0. It replaces the pin before. It sets Found if
	// there was one.
	Pin
	// Unpin ends a Pin. It sets Found if there was one.
	Unpin
	// Announce bounds the entity's Level by Op.Level for the time For. Whole lifts the bound of an earlier Announce.
	Announce
)

// OwnClock as an Op's Now asks the backend to decide by its own clock.
const OwnClock = -1 << 63

// Op is one operation on an entity. Its Kind decides whether Apply reads Ticket or Lease.
type Op struct {
	Kind   Kind
	Now    int64 // ms since 1970, or OwnClock
	Cost   Cost  // GetDelay always costs one call
	For    int64 // ms
	Ticket Ticket
	Lease  Lease

	Urgent   bool  // Admit and Cancel: it goes before the entity's other operations
	Deadline int64 // Admit: no later slot is booked; ms since 1970, 0 if there is none
	Level    int64 // Announce: the level, in 10,000ths of the windows; Throttle: above 0 if the level follows

	Pin *PinnedLimit // Pin: the pinned limit, which Apply does not keep
}

// Answer is the outcome of an Op. Found reports whether the lease, token or ticket of the Op was out. Ticket is the
// slot of a postponed operation, Lease the token of one that runs.
type Answer struct {
	Delay  int64 // ms by the clock of the caller; 0: run
	Bound  Bound // the cause of Delay
	Limit  int64 // the limit of Bound: 0 is the entity's own, 1 the first shared one
	Found  bool
	Late   bool // Admit: it cannot run before its Deadline. Apply books nothing and gives up the Ticket
	Ticket Ticket
	Lease  Lease
}

// Ticket is a booked slot. It travels with the message and may be forged there: only the order depends on it. The zero
// Ticket is a newcomer's.
type Ticket struct {
	Slot   int64 // when it is due
	Number int64 // its place among all tickets of the entity; 0 if it has none
	Again  int64 // 0, denied or unbooked
	Cost   Cost  // the cost that was booked
}

// The values of Ticket.Again. A ticket with another number above 0 counts as one of these.
const (
	denied   = 1 // it was due, and a window denied it
	unbooked = 2 // it has booked nothing, because it goes before the booked operations
)

// Lease is a token with an identity and an end. IDs grow in the order of the leases and are unique in their entity.
// Begin and End are milliseconds since 1970. No lease has the ID 0.
type Lease struct {
	ID    int64
	Begin int64
	End   int64
	Cost  Cost // the charged cost
}

// Bound is the cause of a delay.
type Bound int64

// The causes of a delay.
const (
	BoundNone   Bound = iota // nothing: run
	BoundClosed              // Throttle or Pause
	BoundTokens              // all tokens are out, or others wait for one
	BoundBooked              // the capacity that is left is booked
	BoundWindow              // the first window is used up; the next windows follow
)

// Apply does op at the time now. It sets the answer a, which is zero before, and updates s and leases, which the caller
// then stores. The caller need not store a State that is zero afterwards. In op it sets the Cost of a GetDelay and of a Cancel.
func (l *Limits) Apply(s *State, leases Leases, op *Op, now int64, a *Answer) {
	l.ApplyWithin(s, leases, nil, op, now, a)
}

// ApplyWithin is Apply for an operation within shared limits, too. They change with s. A Settle, a Cancel and a Renew
// need the shared limits of the Admit.
func (l *Limits) ApplyWithin(s *State, leases Leases, shared []Shared, op *Op, now int64, a *Answer) {
	unpinned := false
	if op.Kind == Pin || op.Kind == Unpin {
		unpinned = s.repin(op, now, a)
	}
	s.follows(op)
	if s.pinned(shared) {
		l = l.copies(shared)
		l.hold(s, shared, op, now)
	}
	l.apply(s, leases, shared, op, unpinned, now, a)
}

// apply is ApplyWithin with the limits in force.
func (l *Limits) apply(s *State, leases Leases, shared []Shared, op *Op, unpinned bool, now int64, a *Answer) {
	before, t := s.Now, now
	changes := op.changes() || unpinned
	switch op.Kind {
	case Settle, Cancel:
		changes = s.giveBack(leases, shared, op, now, a)
	case Resume:
		changes = s.Tokens != 0
	case Reset:
		changes = s.Tokens != 0
		leases.Clear() // before advance: an entity without leases may be a forgotten one
	case Announce:
		changes = len(s.Pins) > 0
	}
	if changes {
		t = s.time(shared, now)
		l.advance(s, leases, t)
		for i := range shared {
			shared[i].advance(t)
		}
	}
	switch op.Kind {
	case GetDelay, Admit:
		l.admit(s, leases, shared, op, before, a)
		if a.Delay > 0 {
			a.Delay += t - now
		}
	case ReturnToken:
		if s.Plain > 0 {
			s.Plain--
			a.Found = true
			for i := range shared {
				shared[i].State.Plain = max(0, shared[i].State.Plain-1)
			}
		}
	case Settle, Cancel:
		l.end(s, shared, op, a)
	case Renew:
		if leases.Release(op.Lease.ID, op.Lease.End, max(now, s.Now)) {
			a.Lease = op.Lease
			a.Lease.End = min(max(now, s.Now)+l.Lease, op.Lease.Begin+l.MaxLease)
			leases.Hold(a.Lease.ID, a.Lease.End)
			a.Found = a.Lease.End > now
			for i := range shared {
				x := &shared[i]
				if x.Leases.Release(op.Lease.ID, op.Lease.End, max(now, x.State.Now)) {
					x.Leases.Hold(a.Lease.ID, a.Lease.End)
				}
			}
		}
	case Throttle, Pause:
		l.line(s) // what the windows have gathered until now
		l.pause(s, op.For)
		if op.Kind == Throttle {
			l.drop(s)
		}
	case Resume:
		l.resume(s)
	case Reset:
		if changes {
			l.reset(s, before, now)
		}
	}
}

// back reports whether o carries a ticket: it was postponed before.
func (o *Op) back() bool { return o.Ticket.Slot > 0 && o.Kind != GetDelay }

// changes reports whether o always changes the entity.
func (o *Op) changes() bool {
	return o.Kind == GetDelay || o.Kind == Admit || o.Kind == Throttle || o.Kind == Pause || o.Kind == Pin
}

// Undo is for a caller that left before its answer a came. It returns the operation that gives back the token, lease or
// ticket that o has taken. any is false if there is surely nothing to give back.
func (o *Op) Undo(a *Answer) (undo Op, any bool) {
	switch {
	case o.Kind == Admit:
		return Op{Kind: Cancel, Now: o.Now, Lease: a.Lease, Ticket: a.Ticket, Urgent: o.Urgent}, true
	case o.Kind == GetDelay && a.Delay == 0:
		return Op{Kind: ReturnToken, Now: o.Now}, true
	}
	return Op{}, false
}
