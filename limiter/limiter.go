// Package limiter limits the units a second that operations consume, and makes the operations wait: the client's side
// of a service that allows N read units a second for each table.
//
// Most callers use [Limiter.Do], or [Limiter.Consume] if they know the units beforehand:
//
//	waited, err := l.Consume(ctx, 5)
//
// A call waits for the units of the calls before it, never for its own, because the cost of many operations is known
// only when they are over. The limiter admits a call of any size as soon as nothing is owed. Unused units are saved,
// for at most the limiter's duration. Over any time T a Limiter grants at most limit·(T+duration) units and the whole
// last operation. The algorithm is GCRA with the cost charged after the test.
//
// # Waiting
//
// A call is charged when it is admitted. If its context ends or its timeout passes before, it has nothing to give back,
// and the calls behind it move up. Calls are admitted in FIFO order; TryConsume does not overtake a waiting call.
//
// Callers that time out and ask again at once get equal shares, whatever their timeouts: a call that times out keeps
// its place for a second, for the next call with about the same timeout, and a more patient call leaves it its turn for
// 10 ms or half the duration.
//
// Consume(ctx, 0), the operation and ConsumeNow with the real units, as in the SDKs below, hold the limit in the long
// run but not each second: nothing is owed until the first operation is over, so all waiting calls go at once. With 50
// units a second and 50 workers whose operations take 75 ms and 5 units each, 255 units go in the first second. With Do
// it is 50 and the saved ones.
//
// # Several processes
//
// Limiters with the same [Options.Storage] and [Options.Key] are one limiter, in any number of processes. Each process
// sets the limit and the duration itself; they should be the same. The storage's clock decides if it has one
// ([storage.Reader]). Otherwise the clocks of the processes decide and should agree.
//
// A call takes at least one round trip, which concurrent calls share. Calls of one process are admitted in their order;
// processes get their shares by chance. A waiting call asks again after a tenth of its wait, at most ten times a
// second, because another process may give units back.
//
// If the deciding clock is set back, consumed units stay owed until the clock is where it was, or until Reset. Without
// a Storage, setting the clock has no effect.
//
// An error of the storage is returned to all waiting calls. They are not admitted, but may have been charged.
//
// # Compared with the SDKs of Oracle NoSQL Database
//
// The arithmetic equals their rate limiters' for Java, Go, Node.js and .NET wherever they agree. Where they do not:
//
//   - Saved units are counted from [New] (Java, Go), not from the first call.
//   - A new limit keeps saved and owed units as time (Java, Go): a second's worth stays a second's.
//   - A timeout of zero means no timeout (Java, Go, .NET). A negative one is an error and charges nothing (Java).
//   - A call that times out but charges always reports the timeout (Java, Go).
//   - Throttled drops the saved units at once (Java, Go), not at the next call.
//   - Units may be fractions (Node.js).
//   - The duration defaults to a second (Java, Go), and is at least the time of one unit. A lower limit raises it and a
//     higher one does not lower it again (all).
//   - A limit of zero or less means no limit (all). Limit returns [Unlimited] for it (Go) and CurrentRate 0 (Java). NaN
//     is an error (Node.js, .NET), and so are an Options.Limit that is not set and a negative duration.
//
// This package differs on purpose in these cases:
//
//   - Waits, rates and durations are not rounded: 3 a second is 3, and 3e9 a second are not unlimited.
//   - No number of units overflows into credit; more units than it can count are an error.
//   - A cancelled wait charges nothing; theirs does.
//   - Units given back shorten the waits under way; units charged meanwhile lengthen them.
//   - Do admits waiting operations one after the other.
//   - Callers with short timeouts get their share beside patient ones.
//   - One limiter may serve many processes.
package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/storage"
)

var (
	// ErrTimeout is in the error of a call whose timeout passed before the limiter admitted it.
	ErrTimeout = errors.New("timed out")

	// ErrInvalid is in an error that names the invalid argument and the values that it may have. Nothing has changed.
	ErrInvalid = errors.New("invalid argument")

	// ErrStorage is in the error of a call that the storage did not serve, with the cause. The limiter did not admit
	// the call, but may have charged it.
	ErrStorage = errors.New("storage")
)

var errTooMany = fmt.Errorf("%w: no more than %v seconds' worth of units may be owed", ErrInvalid, float64(mostSeconds))

// Unlimited as a limit admits every call at once and records nothing. Units owed before are owed again when you set
// another limit. An infinite limit is Unlimited, too.
const Unlimited = math.MaxFloat64

const (
	leastLimit  = 1e-9 // a unit in 31 years
	mostLimit   = 1e15 // a unit takes a femtosecond
	mostSeconds = 1e12 // the most debt: 31,000 years
)

// Options of a Limiter. Limit must be set, and Storage and Key go together.
type Options struct {
	// Limit is the units a second: between 1e-9 and 1e15, or Unlimited. Below zero it is Unlimited, too. Required.
	Limit float64

	// Percent is this limiter's part of the limit, above 0 and at most 100, if other limiters that share no Storage
	// have the rest. It applies to SetLimit, too. Defaults to 100.
	Percent float64

	// Duration is how much time's worth of unused units the limiter may save. New raises it to the time of one unit if
	// it is less. Defaults to one second.
	Duration time.Duration

	// Storage keeps the limiter for any number of processes; see the package comment. Defaults to this Limiter's memory.
	Storage storage.Storage

	// Key is the limiter's name in the Storage, and must not be an entity of a Bucket there.
	Key string
}

// Limiter limits units a second. Make one with New; it is safe for concurrent use, and nothing needs to be closed.
type Limiter struct {
	percent float64
	storage storage.Storage // nil: next is here
	reader  storage.Reader  // nil when the storage has no clock
	key     string
	born    time.Time

	mu       sync.Mutex
	limit    float64 // percent of the limit that was set
	duration time.Duration
	next     instant // the end of the debt; if before now, the beginning of the saved time

	// See queue.go.
	changes   []*request
	queue     []*request // by place
	tail      tail       // of the queue
	vacancies []vacancy  // by since
	places    int64      // how many there were
	gone      int        // about how many requests are gone and not removed yet
	answers   []*request // of the round under way
	serving   bool
	again     bool
	timer     *time.Timer

	// The cost of operations of Do.
	average    float64
	operations float64 // the weight of the operations in average
}

// New returns a Limiter that owes nothing and has saved nothing. Its error, ErrInvalid, names the wrong field and the
// values that it may have.
func New(o Options) (*Limiter, error) {
	o.Percent = cmp.Or(o.Percent, 100)
	if !(o.Percent > 0 && o.Percent <= 100) {
		return nil, fmt.Errorf("limiter: %w: Options.Percent is %v; it must be above 0 and at most 100, or 0 for the default", ErrInvalid, o.Percent)
	}
	if o.Duration < 0 {
		return nil, fmt.Errorf("limiter: %w: Options.Duration is %v; it must not be negative", ErrInvalid, o.Duration)
	}
	o.Duration = cmp.Or(o.Duration, time.Second)
	if o.Storage != nil && o.Key == "" {
		return nil, fmt.Errorf("limiter: %w: Options.Key is empty; it must name the limiter in the Storage", ErrInvalid)
	}
	if o.Storage != nil && absent.Is(o.Storage) {
		return nil, fmt.Errorf("limiter: %w: Options.Storage is a nil %T", ErrInvalid, o.Storage)
	}
	if o.Storage == nil && o.Key != "" {
		return nil, fmt.Errorf("limiter: %w: Options.Key is %q without a Storage; it names the limiter in one", ErrInvalid, o.Key)
	}
	if o.Limit == 0 {
		return nil, fmt.Errorf("limiter: %w: Options.Limit is 0; it must be set, to Unlimited if there is none", ErrInvalid)
	}
	l := &Limiter{
		percent:  o.Percent,
		storage:  o.Storage,
		key:      o.Key,
		born:     time.Now(),
		duration: o.Duration,
	}
	l.next = at(l.born)
	l.reader, _ = o.Storage.(storage.Reader)
	if err := l.SetLimit(o.Limit); err != nil {
		return nil, err
	}
	return l, nil
}

// Consume waits until nothing is owed, charges the units and returns how long it waited. Zero units wait and charge
// nothing; use Do to operate then and charge the real units. Units below zero are given back at once and shorten the
// waits of others.
//
// If the context ends first, Consume charges nothing and its error wraps the context's.
func (l *Limiter) Consume(ctx context.Context, units float64) (waited time.Duration, err error) {
	waited, err = l.consume(ctx, units, 0, false)
	return waited, failed("consume", units, err)
}

// ConsumeTimeout is Consume with a timeout. If the wait would be as long or longer, it waits that long and returns
// ErrTimeout; it charges the units then only if always is true. If the context ends first, it charges nothing. A
// timeout of zero means no timeout, and a negative one is ErrInvalid. To charge even if the context ends, call
// ConsumeNow with another context.
//
// The timeout bounds the limiter's wait, and the context the time that a storage takes to answer.
func (l *Limiter) ConsumeTimeout(ctx context.Context, units float64, timeout time.Duration, always bool) (waited time.Duration, err error) {
	waited, err = l.consume(ctx, units, timeout, always)
	return waited, failed("consume", units, err)
}

func (l *Limiter) consume(ctx context.Context, units float64, timeout time.Duration, always bool) (time.Duration, error) {
	if timeout < 0 {
		return 0, fmt.Errorf("%w: the timeout is %v; it must not be negative, and 0 is none", ErrInvalid, timeout)
	}
	if units < 0 {
		return 0, l.consumeNow(ctx, units)
	}
	r := &request{units: units, timeout: timeout, always: always}
	err := l.admit(ctx, r)
	return r.waited, err
}

// TryConsume charges the units if nothing is owed and no call waits, and reports whether it did. It waits only for the
// storage. With zero units it reports whether the limiter would admit a call now. It gives units below zero back and
// returns true.
func (l *Limiter) TryConsume(ctx context.Context, units float64) (bool, error) {
	var err error
	if units < 0 {
		err = l.consumeNow(ctx, units)
	} else {
		err = l.admit(ctx, &request{units: units, try: true})
	}
	if err == errRefused {
		return false, nil
	}
	return err == nil, failed("try to consume", units, err)
}

// ConsumeNow charges the units without waiting, whatever is owed; later calls wait for them. It gives units below zero
// back. If its context has ended, it charges nothing: call it with context.WithoutCancel of the operation's.
func (l *Limiter) ConsumeNow(ctx context.Context, units float64) error {
	return failed("consume", units, l.consumeNow(ctx, units))
}

func (l *Limiter) consumeNow(ctx context.Context, units float64) error {
	limit := l.Limit()
	if err := check(units, limit); err != nil {
		return err
	}
	if limit == Unlimited {
		return ctx.Err()
	}
	return l.change(ctx, func(next, now instant) (instant, error) { return l.charge(next, now, units/l.limit) })
}

// Do waits until nothing is owed, calls op and charges the units that op returns, even if op failed. It does not wait
// again. It returns the error of op, or an error that says why it did not call op, or both errors joined if it could
// not charge the units.
//
// Do charges an estimate before op and settles the difference after it, so waiting operations go one after the other.
// The estimate is the average cost of this Limiter's operations, with the latest weighted most, or a second's worth as
// long as none is over. If op panics or returns units that are negative, no number or too many to count, the estimate
// stays charged.
func (l *Limiter) Do(ctx context.Context, op func(context.Context) (units float64, err error)) error {
	r := &request{estimate: true}
	if err := l.admit(ctx, r); err != nil {
		return fmt.Errorf("limiter: do: %w", err)
	}
	units, err := op(ctx)
	bad := check(units, l.Limit())
	if units < 0 {
		bad = fmt.Errorf("%w: the units are %v; an operation must not give any back", ErrInvalid, units)
	}
	if bad != nil {
		return errors.Join(err, fmt.Errorf("limiter: do: charge %v units: %w", units, bad))
	}
	// An operation that failed and cost nothing says nothing about the cost of others.
	if err == nil || units > 0 {
		l.learn(units)
	}
	if r.charged == 0 && l.Limit() == Unlimited {
		return err
	}
	settle := func(next, now instant) (instant, error) { return l.charge(next, now, units/l.limit-r.charged) }
	if bad := l.change(context.WithoutCancel(ctx), settle); bad != nil {
		err = errors.Join(err, fmt.Errorf("limiter: do: charge %v units: %w", units, bad))
	}
	return err
}

// expected returns the charge of an operation of Do beforehand. l.mu is held.
func (l *Limiter) expected() float64 {
	if l.operations == 0 {
		return max(1, l.limit)
	}
	return l.average
}

// learn counts the cost of an operation. The second's worth that the first one was expected to cost counts as an
// operation, too. Otherwise all waiting calls would go next if the first one costs nothing.
func (l *Limiter) learn(units float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == Unlimited {
		return
	}
	l.average = l.expected()
	l.operations = min(l.operations+1, 7)
	l.average += (units - l.average) / (l.operations + 1)
}

// Reset drops the saved and the owed units. Limit and duration stay.
func (l *Limiter) Reset(ctx context.Context) error {
	err := l.change(ctx, func(_, now instant) (instant, error) { return now, nil })
	return wrap("reset", err)
}

// Throttled drops the saved units. Call it when the service has refused an operation that the limiter had admitted.
// Owed units stay owed.
func (l *Limiter) Throttled(ctx context.Context) error {
	err := l.change(ctx, func(next, now instant) (instant, error) { return later(next, now), nil })
	return wrap("throttled", err)
}

// CurrentRate returns the rate at this moment in percent of the limit: 100 when nothing is owed or saved, 0 when a
// second's worth or more is saved, and above 100 when units are owed: 200 for a second's worth.
func (l *Limiter) CurrentRate(ctx context.Context) (percent float64, err error) {
	err = l.change(ctx, func(next, now instant) (instant, error) {
		saved := min(now.seconds(next), l.duration.Seconds())
		percent = max(0, 100-100*saved)
		if l.limit == Unlimited {
			percent = 0
		}
		return next, nil
	})
	if err != nil {
		return 0, wrap("current rate", err)
	}
	return percent, nil
}

// SetCurrentRate makes the rate at this moment so many percent of the limit; see CurrentRate. A percent below 0 means
// more than a second's worth saved; the next call finds no more of it than the duration.
func (l *Limiter) SetCurrentRate(ctx context.Context, percent float64) error {
	seconds := percent/100 - 1
	if !(math.Abs(seconds) <= mostSeconds) {
		return fmt.Errorf("limiter: %w: the rate is %v percent; it must be a number, and no more than 1e14 either way", ErrInvalid, percent)
	}
	err := l.change(ctx, func(_, now instant) (instant, error) { return now.after(seconds), nil })
	return wrap("set current rate", err)
}

// SetLimit sets the units a second, of which this limiter allows its percentage; zero or less is Unlimited. Saved and
// owed units stay the same in time. SetLimit raises the duration to the time of one unit if it is less. Other processes
// have limits of their own. If the limit is NaN, or the part that this limiter allows is not between 1e-9 and 1e15, the
// error is ErrInvalid.
func (l *Limiter) SetLimit(perSecond float64) error {
	limit := perSecond * l.percent / 100
	switch {
	case perSecond <= 0, perSecond >= Unlimited:
		limit = Unlimited
	case !(limit >= leastLimit && limit <= mostLimit):
		of := ""
		if l.percent != 100 {
			of = fmt.Sprintf(", of which %v percent are %v", l.percent, limit)
		}
		return fmt.Errorf("limiter: %w: the limit is %v units a second%s; it must be between %v and %v, or Unlimited, or 0 for that", ErrInvalid, perSecond, of, leastLimit, mostLimit)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = limit
	l.raise()
	if len(l.queue) > 0 {
		l.serve()
	}
	return nil
}

// Limit returns the units a second that this limiter allows: its percentage of the limit that was set.
func (l *Limiter) Limit() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limit
}

// SetDuration sets how much time's worth of units the limiter may save. It raises d to the time of one unit if it is
// less. With a longer duration the limiter counts units that were unused in the past, too, as far as it knows them.
// With a shorter one the next call drops them. Other processes have durations of their own. A negative d is ErrInvalid.
func (l *Limiter) SetDuration(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("limiter: %w: the duration is %v; it must not be negative", ErrInvalid, d)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.duration = d
	l.raise()
	return nil
}

// Duration returns how much time's worth of units the limiter may save.
func (l *Limiter) Duration() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.duration
}

// raise makes the duration long enough to save one unit. Otherwise a call would have to come at the very moment. l.mu
// is held.
func (l *Limiter) raise() {
	l.duration = max(l.duration, time.Duration(math.Round(1e9/l.limit)), 1)
}

// charge returns next with seconds' worth of units charged, or fewer than zero given back. l.mu is held.
func (l *Limiter) charge(next, now instant, seconds float64) (instant, error) {
	if !(math.Abs(seconds) <= mostSeconds) {
		return next, errTooMany
	}
	moved := later(next, now.before(l.duration)).after(seconds)
	if moved.ms-now.ms > mostSeconds*1000 {
		return next, errTooMany
	}
	return moved, nil
}

// check returns an error for units that are no number or too many to count.
func check(units, limit float64) error {
	if math.IsNaN(units) || math.IsInf(units, 0) {
		return fmt.Errorf("%w: the units are %v; they must be a number", ErrInvalid, units)
	}
	if limit == 0 {
		return errors.New("a Limiter is made with New")
	}
	if math.Abs(units/limit) > mostSeconds {
		return errTooMany
	}
	return nil
}

func failed(what string, units float64, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("limiter: %s %v units: %w", what, units, err)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("limiter: %s: %w", what, err)
}
