package drip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Request describes an operation to admit. The zero value is one call, a newcomer, now.
type Request struct {
	// Cost is how much capacity the operation takes of windows without a Unit; of tokens it always takes one. Zero means
	// 1, unlike the cost of Settle.
	Cost int

	// Costs is how much it takes of windows with a Unit, as far as the caller knows; Settle charges the real costs.
	// Defaults to nil: nothing.
	Costs Costs

	// Ticket is the Admission.Ticket that postponed this operation, zero for a newcomer. A forged or broken ticket is
	// harmless: only the order depends on tickets.
	Ticket Ticket

	// Within are the names of the shared limits that the operation is within, of Options.Shared. Defaults to nil: all of
	// them. An empty list that is not nil is none.
	Within []string

	// Urgent lets the operation pass the others of its entity. It does not pass other entities: in a scarce shared
	// limit it counts as a part of its entity's share.
	Urgent bool

	// Deadline is the latest time at which the operation may start: leave it the time that it takes. Admit returns
	// ErrDeadline for an operation that would start later. The zero time means no deadline.
	Deadline time.Time

	// Now is a time of the caller's, for simulations and tests, cut to milliseconds. Settle, Cancel and Renew of the
	// lease then use the latest time at which the entity was asked, not the clock. The other methods use Options.Clock.
	// Defaults to now.
	Now time.Time
}

// Admission is the answer of Admit: run, if Delay is zero, or postpone. Beside an error it is zero and means nothing.
type Admission struct {
	// Delay is zero for an operation that may run now. Otherwise postpone the operation for Delay, then ask again with
	// Ticket.
	Delay time.Duration

	// Ticket is the slot that Admit booked for a postponed operation. Send it along with the message. It is zero if Admit
	// booked none, because the slot depends on costs that are not known yet, or on tickets that may be lost. Then the
	// message asks again as a newcomer.
	Ticket Ticket

	// Lease is the token of an operation that may run. Give it back with Settle when the operation is over.
	Lease Lease

	// Bound is the cause of the delay. Limit is the name of the shared limit that caused it, "" for the entity's own
	// limit.
	Bound Bound
	Limit string
}

// Ticket is a booked slot. String writes it as a short text and ParseTicket reads it. The zero Ticket belongs to a
// newcomer.
type Ticket struct {
	t      decision.Ticket
	within uint64 // the shared limits, a bit for each
	urgent bool
}

// Lease is a token with an identity and an end. It belongs to its entity: a call for another entity refuses it. It is
// comparable. The zero Lease means no lease.
type Lease struct {
	entity string
	l      decision.Lease
	within uint64 // the shared limits, a bit for each
	given  bool   // the caller gave the time at which it was taken
}

// IsZero reports whether t is the zero Ticket, a newcomer's.
func (t Ticket) IsZero() bool { return t == Ticket{} }

// String returns the ticket as a text of at most 140 bytes, empty for the zero Ticket.
func (t Ticket) String() string {
	if t.IsZero() {
		return ""
	}
	urgent := 0
	if t.urgent {
		urgent = 1
	}
	c := &t.t.Cost
	if *c == (decision.Cost{c[0]}) {
		return fmt.Sprintf("3.%d.%d.%d.%d.%d.%x", t.t.Slot, t.t.Number, t.t.Again, c[0], urgent, t.within)
	}
	return fmt.Sprintf("4.%d.%d.%d.%d.%d.%d.%d.%d.%x", t.t.Slot, t.t.Number, t.t.Again, c[0], c[1], c[2], c[3], urgent, t.within)
}

// ParseTicket reads a text of String; the empty text is the zero Ticket. After an error the ticket is zero, which makes
// its message a newcomer.
func ParseTicket(s string) (Ticket, error) {
	if s == "" {
		return Ticket{}, nil
	}
	if len(s) > longestTicket { // Sscanf would read all of a forged text
		return Ticket{}, errTicket
	}
	var t Ticket
	var urgent int
	var rest string
	c := &t.t.Cost
	n, want := 0, 6
	if strings.HasPrefix(s, "3") {
		n, _ = fmt.Sscanf(s, "3.%d.%d.%d.%d.%d.%x%s", &t.t.Slot, &t.t.Number, &t.t.Again, &c[0], &urgent, &t.within, &rest)
	} else {
		want = 9
		n, _ = fmt.Sscanf(s, "4.%d.%d.%d.%d.%d.%d.%d.%d.%x%s", &t.t.Slot, &t.t.Number, &t.t.Again, &c[0], &c[1], &c[2], &c[3], &urgent, &t.within, &rest)
	}
	t.urgent = urgent == 1
	if n != want || t.t.Slot < 1 || t.t.Slot > decision.Never || t.t.Number < 0 || t.t.Number >= decision.LastTime ||
		t.t.Again < 0 || t.t.Again > 2 || slices.Min(c[:]) < 0 || slices.Max(c[:]) > decision.MostUnits || urgent < 0 || urgent > 1 {
		return Ticket{}, errTicket
	}
	t.t.Slot = min(t.t.Slot, farSlot)
	return t, nil
}

// longestTicket is the most bytes of a text of String.
const longestTicket = 140

var errTicket = errors.New("drip: not a ticket")

// farSlot is in the year 37648. The numbers of a shared limit overflow with slots much further ahead: a forged ticket
// with such a slot would hold up its entity for ever.
const farSlot = 1 << 50

// MarshalText implements encoding.TextMarshaler.
func (t Ticket) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, as ParseTicket.
func (t *Ticket) UnmarshalText(text []byte) (err error) {
	*t, err = ParseTicket(string(text))
	return err
}

// Slot returns the time at which the operation is due, zero for the zero Ticket.
func (t Ticket) Slot() time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.UnixMilli(t.t.Slot)
}

// Cost returns the cost that Admit charged, in calls.
func (l Lease) Cost() int { return int(l.l.Cost[0]) }

// Begin returns the time at which Admit gave the lease, zero for the zero Lease.
func (l Lease) Begin() time.Time { return l.time(l.l.Begin) }

// End returns the time at which the holder counts as dead, unless it renews the lease before. It is zero for the zero
// Lease.
func (l Lease) End() time.Time { return l.time(l.l.End) }

func (l Lease) time(ms int64) time.Time {
	if l.l.ID == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Ticket returns a ticket for an operation that has to run again, because it failed or the provider refused it. With it
// Admit gives the operation the next free capacity, before newcomers. The zero Lease returns the zero Ticket.
func (l Lease) Ticket() Ticket {
	if l == (Lease{}) {
		return Ticket{}
	}
	return Ticket{t: decision.Ticket{Slot: l.l.Begin}}
}

// Bound is the cause of a delay.
type Bound int

// The causes of a delay. BoundWindow is the first window, the one of RefreshRate. BoundWindow+1 is Options.Windows[0],
// and so on.
const (
	BoundNone   Bound = iota // nothing: run
	BoundClosed              // Throttled or Pause
	BoundTokens              // all tokens are out, or others wait for a token
	BoundBooked              // others have booked the capacity that is left
	BoundWindow              // a window's capacity is used up
)

func leaseOf(entityID string, l decision.Lease, within uint64) Lease {
	if l.ID == 0 {
		return Lease{}
	}
	return Lease{entity: entityID, l: l, within: within}
}

// String names the cause: "tokens", "window 2".
func (b Bound) String() string {
	switch b {
	case BoundNone:
		return "nothing"
	case BoundClosed:
		return "closed"
	case BoundTokens:
		return "tokens"
	case BoundBooked:
		return "booked"
	}
	return fmt.Sprintf("window %d", b-BoundWindow+1)
}

// ErrDeadline means that the operation would start after its Request.Deadline. Nothing was booked.
var ErrDeadline = errors.New("it cannot run before its deadline")

// ErrNoLease means that there is no lease, or that it was given back before, has ended, or belongs to another entity.
// The token may be another operation's now. The entity has not changed.
var ErrNoLease = errors.New("the lease is over")

// noLease is ErrNoLease with a text of its own.
type noLease string

func (e noLease) Error() string { return string(e) }
func (noLease) Unwrap() error   { return ErrNoLease }

// Admit decides when an operation for the entity may run, as GetDelay does, and books a slot for a postponed operation:
//
//   - If Delay is zero, run the operation, and give the lease back with Settle, even if the operation failed. The lease
//     ends by itself after Options.Lease; renew it before if the operation takes longer.
//   - Otherwise postpone it by Delay and ask again with the Ticket. It then runs unless the limit itself forbids it;
//     newcomers leave it its capacity. If it comes back early it keeps its slot. If it will never run, Cancel it.
//
// Admit counts an operation when it runs, so tickets never exceed the limits. While no ticket is outstanding, Admit and
// GetDelay agree, except when only tokens are short: then Admit uses the measured duration of operations.
//
// Admit returns ErrCost for a cost that it can never admit. It returns ErrUnit for a unit that no window counts, and
// ErrNoShared for a name in Within that Options.Shared does not have. It returns ErrDeadline for an operation that
// cannot run before its Deadline; it then books nothing and gives up the ticket. After any error do not run the
// operation. If the failed call took a lease all the same, the lease ends by itself.
func (b *Bucket) Admit(ctx context.Context, entityID string, r Request) (Admission, error) {
	op, a := decision.Op{Kind: decision.Admit, Cost: decision.Cost{int64(cmp.Or(r.Cost, 1))}, Ticket: r.Ticket.t, Urgent: r.Urgent}, decision.Answer{}
	if !r.Deadline.IsZero() {
		op.Deadline = max(1, min(unixMilli(r.Deadline), decision.LastTime))
	}
	which, err := b.of(entityID).named(r.Within)
	if err == nil {
		err = b.units.set(&op.Cost, r.Costs)
	}
	if err == nil {
		err = b.units.valid(&op.Cost)
	}
	var within []storage.Within
	if err == nil {
		within, err = b.do(ctx, entityID, which, &op, &a, r.Now)
	}
	if err == nil && a.Late {
		err = ErrDeadline
	}
	if err != nil {
		return Admission{}, fmt.Errorf("drip: admit %q: %w", entityID, err)
	}
	admission := Admission{
		Delay: milliseconds(a.Delay),
		Lease: leaseOf(entityID, a.Lease, which),
		Bound: Bound(a.Bound),
		Limit: limitName(within, a.Limit),
	}
	admission.Lease.given = admission.Lease != (Lease{}) && !r.Now.IsZero()
	if a.Ticket != (decision.Ticket{}) {
		admission.Ticket = Ticket{a.Ticket, which, r.Urgent}
	}
	return admission, nil
}

// Settle gives a lease back and charges the real cost of the operation: in calls, and in the units that costs name.
// Pass Lease.Cost if you know no other cost. A cost of 0 means that the operation took nothing, unlike Request.Cost.
// Units that costs does not name stay charged as in Request.Costs. If costs name a unit twice, the last cost counts. If
// the operation cost more than it was charged, the entity owes the difference. If it cost less, the difference comes
// back, as far as the window would still have it. So a window never has more than its Size, and gets nothing back if it
// was full since then. A window whose RefreshRate is its Size is full with each interval.
//
// After ErrCost or ErrUnit the lease is still out: call Settle again, with Lease.Cost if you know no better.
//
// Calling Settle twice is safe: the second call returns ErrNoLease, and so does a call after the lease has ended. So
// you may call it again after any other error. A lease that is not settled ends by itself, at the expected cost. Call
// Settle with a context that is still alive, such as context.WithoutCancel of the handler's.
func (b *Bucket) Settle(ctx context.Context, entityID string, l Lease, cost int, costs ...Costs) error {
	op := decision.Op{Kind: decision.Settle, Lease: l.l}
	var err error
	if op.Cost, err = b.charge(&l, cost, costs); err != nil {
		return fmt.Errorf("drip: settle %q: %w", entityID, err)
	}
	return b.leased(ctx, "settle", entityID, &l, &op)
}

// charge returns the real cost of an operation.
func (b *Bucket) charge(l *Lease, cost int, costs []Costs) (decision.Cost, error) {
	real := l.l.Cost
	real[0] = int64(cost)
	for _, of := range costs {
		if err := b.units.set(&real, of); err != nil {
			return real, err
		}
	}
	return real, b.units.valid(&real)
}

// Cancel undoes an Admit. It gives back a lease with its whole cost, as for an operation that was never sent, or frees
// a booked slot for others. Call it once for each ticket: a second call may free another operation's slot. It returns
// ErrNoLease if the lease was over, and if the entity is unknown or has given no such ticket. Within shared limits it
// does not check the ticket, and returns nil.
func (b *Bucket) Cancel(ctx context.Context, entityID string, a Admission) error {
	op := decision.Op{Kind: decision.Cancel, Lease: a.Lease.l, Ticket: a.Ticket.t, Urgent: a.Ticket.urgent}
	a.Lease.within |= a.Ticket.within
	return b.leased(ctx, "cancel", entityID, &a.Lease, &op)
}

// Renew makes a lease end Options.Lease from now, but not later than Options.MaxLease after it began. It returns the
// new lease, for Settle and the next Renew. After ErrNoLease another operation may have the token: stop this operation
// if you can. After any other error the lease may still be out: renew it again.
func (b *Bucket) Renew(ctx context.Context, entityID string, l Lease) (Lease, error) {
	op, a := decision.Op{Kind: decision.Renew, Lease: l.l}, decision.Answer{}
	if err := b.withLease(ctx, entityID, &l, &op, &a); err != nil {
		return Lease{}, fmt.Errorf("drip: renew the lease of %q: %w", entityID, err)
	}
	l.l = a.Lease
	return l, nil
}

func (b *Bucket) leased(ctx context.Context, doing, entityID string, l *Lease, op *decision.Op) error {
	var a decision.Answer
	if err := b.withLease(ctx, entityID, l, op, &a); err != nil {
		return fmt.Errorf("drip: %s %q: %w", doing, entityID, err)
	}
	return nil
}

// withLease does op, whose lease is l.
func (b *Bucket) withLease(ctx context.Context, entityID string, l *Lease, op *decision.Op, a *decision.Answer) error {
	if l.l.ID != 0 && l.entity != entityID {
		return noLease(fmt.Sprintf("the lease belongs to %q", l.entity))
	}
	var now time.Time
	if l.given { // not later than the entity's time, which its caller gives
		now = l.Begin()
	}
	_, err := b.do(ctx, entityID, l.within, op, a, now)
	switch {
	case err != nil || a.Found:
		return err
	case op.Kind == decision.Cancel && l.l.ID == 0:
		return noLease("there is no such ticket")
	case l.l.ID == 0:
		return noLease("there is no lease: the operation was postponed")
	}
	return ErrNoLease
}

// Throttled reports that the provider has refused an operation of the entity and wants retryAfter to pass. Until then
// no operation of the entity starts, in any process. The entity loses the capacity that it has gathered, and the next
// interval brings its RefreshRate. A window whose Size is its RefreshRate keeps the capacity that is left. Admit gives
// operations that come back with a ticket a slot after that time. A retryAfter below a millisecond counts as one
// millisecond, one above 34 years as 34 years. With Options.Follow it lowers the entity's level, too.
//
// Settle the lease of the refused operation. Then Admit its message again, with the Lease.Ticket, and postpone it by
// the Delay. If the provider names no time, choose one, such as a second: after a millisecond Admit may let the message
// run.
func (b *Bucket) Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error {
	return b.tell(ctx, "throttle", b.refused(entityID), decision.Throttle, retryAfter)
}

// Announced reports the rate that the provider announces to the entity, in calls a second in the long run. With
// Options.Follow the entity's level is no higher for the time d, above 0, or until the next Announced; without it
// Announced only checks its arguments. The level falls at once, and rises in steps of ten seconds or more. A rate above
// the limit bounds nothing, and neither does 0, or any rate if no window counts calls. A rate below 0 or a d of 0 or
// less is an error.
func (b *Bucket) Announced(ctx context.Context, entityID string, perSecond float64, d time.Duration) error {
	err := b.check(ctx, entityID)
	switch {
	case err != nil:
	case !(perSecond >= 0):
		err = fmt.Errorf("the rate is %v; it must be at least 0", perSecond)
	case d <= 0:
		err = fmt.Errorf("the time is %v; it must be above 0", d)
	case b.options.Follow:
		entityID = b.refused(entityID)
		err = b.of(entityID).announce(ctx, entityID, perSecond, d)
	}
	if err != nil {
		return fmt.Errorf("drip: announce the rate of %q: %w", entityID, err)
	}
	return nil
}

func (b *Bucket) announce(ctx context.Context, entityID string, perSecond float64, d time.Duration) error {
	now, err := b.clock(time.Time{})
	if err != nil {
		return err
	}
	l, err := b.limitsOf(ctx, entityID, now)
	if err != nil {
		return err
	}
	level := 0.0 // of the slowest window
	for _, w := range l.Windows {
		if w.Unit == 0 && w.Size < decision.MostUnits && perSecond > 0 {
			level = max(level, 1./decision.Whole, perSecond*milliseconds(w.Interval).Seconds()/float64(min(w.Rate, w.Size)))
		}
	}
	op, a := decision.Op{Kind: decision.Announce, For: wholeMilliseconds(d), Level: int64(decision.Whole * min(1, cmp.Or(level, 1)))}, decision.Answer{}
	_, err = b.do(ctx, entityID, 0, &op, &a, time.Time{})
	return err
}

// Pause lets no operation of the entity start for the time d, above 0, or until Resume. A time above 34 years
// counts as 34 years. Messages that ask meanwhile are postponed until its end or later, and come back then also after a
// Resume. So pause for a short time, and again before it ends.
func (b *Bucket) Pause(ctx context.Context, entityID string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("drip: pause %q: the time is %v; it must be above 0", entityID, d)
	}
	return b.tell(ctx, "pause", entityID, decision.Pause, d)
}

// Resume ends a Pause or a Throttled. For an open entity it returns nil.
func (b *Bucket) Resume(ctx context.Context, entityID string) error {
	return b.tell(ctx, "resume", entityID, decision.Resume, 0)
}

// Reset takes back all tokens and leases of the entity, forgets all its tickets, and ends a Pause or a Throttled.
// Operations that have run stay counted, and a Pin and a level stay. Use it when you know that the holders are gone.
//
// It changes no shared limit. There a lease ends by itself or with its Settle, although that returns ErrNoLease. Tokens
// of GetDelay stay out until the shared limit is Reset by its SharedID. Options.History keeps the estimate of an
// operation whose lease a Reset has ended.
func (b *Bucket) Reset(ctx context.Context, entityID string) error {
	return b.tell(ctx, "reset", entityID, decision.Reset, 0)
}

// wholeMilliseconds rounds up, to at least one, so that nothing ends early.
func wholeMilliseconds(d time.Duration) int64 {
	return min(int64((max(d, 1)-1)/time.Millisecond)+1, decision.MostTime)
}

func (b *Bucket) tell(ctx context.Context, doing, entityID string, kind decision.Kind, d time.Duration) error {
	op, a := decision.Op{Kind: kind, For: wholeMilliseconds(d)}, decision.Answer{}
	if kind == decision.Throttle && b.options.Follow {
		op.Level = 1
	}
	if kind == decision.Throttle && b.options.Clock == nil { // the storage cuts its time to milliseconds
		op.For = min(op.For+1, decision.MostTime)
	}
	if _, err := b.do(ctx, entityID, 0, &op, &a, time.Time{}); err != nil {
		return fmt.Errorf("drip: %s %q: %w", doing, entityID, err)
	}
	return nil
}
