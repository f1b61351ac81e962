package drip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
)

// Window is a further limit beside the first one of Options: capacity that comes with each interval.
type Window struct {
	// Size is the most capacity the window gathers. Required.
	Size int

	// RefreshRate is the capacity it gains each RefreshInterval. A rate above Size counts as Size, but ends a debt sooner.
	// Defaults to Size: all of it comes back.
	RefreshRate int

	// RefreshInterval is the length of an interval, in whole milliseconds. Required, unless Align is a calendar's.
	RefreshInterval time.Duration

	// Align tells when the intervals begin: with midnight, or at another time for each entity. Defaults to the multiples
	// of RefreshInterval in Unix time.
	Align Alignment

	// Unit is the unit that the window counts. Empty means calls: an operation takes its Request.Cost. Otherwise it names
	// a unit, and an operation takes its Request.Costs of that unit. A window does not bind an operation that takes
	// nothing of its unit. All windows of a Bucket, with its shared limits, may name three units. No unit is "calls".
	Unit string
}

// Limit is the limit of one entity, as Options.Limits returns it, or a shared limit, in Options.Shared or as
// Options.SharedLimits returns it. Its fields have the meaning that they have in Options. In the answer of a function a
// zero field, or empty Windows, means the field of the Options or of Options.Shared. Options.Shared tells the defaults
// of a shared limit.
type Limit struct {
	// The fields of Options with these names.
	Size, RefreshRate int
	RefreshInterval   time.Duration
	Align             Alignment
	Unit              string
	Windows           []Window
	Concurrency       int
	WaitForToken      time.Duration

	// FirstCome lets the entities of a scarce shared limit run in FIFO order, instead of dividing it between them. It
	// has no effect on an entity's own limit, and none in the answer of Options.SharedLimits.
	FirstCome bool

	// Shadow sets a shared limit on trial: the Bucket ignores it, and a Shadow over the Bucket tries it. It has no effect
	// in the answer of a function. For the entities' own limit see Options.Shadow.
	Shadow bool
}

// ErrCost means that a cost is below zero or above 2^40. From Admit it also means that a window of that unit can never
// hold the cost. Nothing was decided.
var ErrCost = errors.New("the cost is out of range")

// check returns an error if a call cannot be about this entity.
func (b *Bucket) check(ctx context.Context, entityID string) error {
	switch {
	case b.storage == nil:
		return errors.New("a Bucket is made with New")
	case ctx == nil:
		return errors.New("the context is nil")
	case entityID == "":
		return errEmpty
	case strings.HasPrefix(entityID, historyMark):
		return errHistory
	}
	return nil
}

// limitsOf returns the limit of an entity for package decision, at the time now or OwnClock.
func (b *Bucket) limitsOf(ctx context.Context, entityID string, now int64) (*decision.Limits, error) {
	if err := b.check(ctx, entityID); err != nil {
		return nil, err
	}
	if name, shared := strings.CutPrefix(entityID, sharedMark); shared {
		i, err := b.place(name)
		if err != nil {
			return nil, err
		}
		return b.limitsOfShared(ctx, &b.shared[i], now)
	}
	if b.options.Limits == nil && !b.moves || b.options.Shadow != b.trial { // in the second case it has no own limit
		return &b.limits, nil
	}
	o := b.options
	if b.trial {
		entityID = strings.TrimPrefix(entityID, shadowMark)
	}
	if o.Limits != nil {
		own, err := o.Limits(ctx, entityID)
		if err != nil {
			return nil, fmt.Errorf("its limit: %w", err)
		}
		o.override(&own)
	}
	l, err := o.limits(b.units, askedAt(entityID, now))
	if err != nil {
		return nil, fmt.Errorf("its limit: Limit.%w", err)
	}
	return &l, nil
}

// override takes the fields of a limit that are not zero.
func (o *Options) override(l *Limit) {
	o.Size = cmp.Or(l.Size, o.Size)
	o.RefreshRate = cmp.Or(l.RefreshRate, o.RefreshRate)
	if l.RefreshInterval != 0 || l.Align.Calendar() {
		o.RefreshInterval = l.RefreshInterval
		if o.Align.Calendar() { // which a RefreshInterval takes away
			o.Align = Alignment{}
		}
	}
	o.Align = cmp.Or(l.Align, o.Align)
	o.Unit = cmp.Or(l.Unit, o.Unit)
	o.Concurrency = cmp.Or(l.Concurrency, o.Concurrency)
	o.WaitForToken = cmp.Or(l.WaitForToken, o.WaitForToken)
	if len(l.Windows) > 0 {
		o.Windows = l.Windows
	}
}

// own copies what belongs to the caller.
func (o *Options) own() {
	o.Windows, o.Shared = slices.Clone(o.Windows), maps.Clone(o.Shared)
	for name, l := range o.Shared {
		l.Windows = slices.Clone(l.Windows)
		o.Shared[name] = l
	}
}

func (o *Options) setFirst(w Window) {
	o.Size, o.RefreshRate, o.RefreshInterval, o.Align, o.Unit = w.Size, w.RefreshRate, w.RefreshInterval, w.Align, w.Unit
}

func (o *Options) setDefaults() {
	o.Size = cmp.Or(o.Size, 100)
	if o.Align.Calendar() {
		o.RefreshRate = cmp.Or(o.RefreshRate, o.Size)
	} else {
		o.RefreshRate = cmp.Or(o.RefreshRate, min(50, max(1, o.Size)))
		o.RefreshInterval = cmp.Or(o.RefreshInterval, time.Second)
	}
	o.WaitForToken = cmp.Or(o.WaitForToken, 50*time.Millisecond)
	o.Lease = cmp.Or(o.Lease, time.Minute)
	o.MaxLease = cmp.Or(o.MaxLease, max(time.Hour, o.Lease))
	o.Share = cmp.Or(o.Share, 1)
}

// limits returns the limits of the options for package decision, for the entity and the time of a call. Its error begins with the name of the field.
func (o *Options) limits(units units, by asked) (decision.Limits, error) {
	var wrong error
	check := func(ok bool, format string, args ...any) {
		if !ok && wrong == nil {
			wrong = fmt.Errorf(format, args...)
		}
	}
	check(o.Share > 0 && o.Share <= 1, "Share is %v; it must be above 0 and at most 1, or 0 for the default", o.Share)
	share := func(name string, n int) int64 {
		part := int64(n)
		if o.Share < 1 && n != decision.MostUnits { // which is any number
			part = int64(math.Floor(o.Share*float64(n) + 1e-9)) // 0.29 of 100 is 29, not 28.999999999999996
		}
		check(n >= 1, "%s is %d; it must be at least 1, or 0 for the default", name, n)
		check(n <= decision.MostUnits, "%s is %d; it must be at most %d", name, n, int64(decision.MostUnits))
		check(part >= 1, "%s is %d, of which the Share leaves nothing", name, n)
		return part
	}
	milliseconds := func(name string, d time.Duration) int64 {
		check(d >= time.Millisecond && d%time.Millisecond == 0, "%s is %v; it must be whole milliseconds, at least 1ms, or 0 for the default", name, d)
		check(d <= decision.MostTime*time.Millisecond, "%s is %v; it must be at most %v", name, d, decision.MostTime*time.Millisecond)
		return d.Milliseconds()
	}
	var l decision.Limits
	window := func(name string, w Window) {
		unit, err := units.number(w.Unit)
		check(err == nil, "%sUnit is %q; no window of the Options counts that", name, w.Unit)
		d := decision.Window{Unit: unit, Size: share(name+"Size", w.Size), Rate: share(name+"RefreshRate", w.RefreshRate)}
		if w.Align.Calendar() {
			check(w.RefreshInterval == 0, "%sRefreshInterval is %v; it must be 0, because Align gives the intervals", name, w.RefreshInterval)
		} else {
			d.Interval = milliseconds(name+"RefreshInterval", w.RefreshInterval)
		}
		far := w.Align.check(name + "Align")
		check(far == nil, "%w", far)
		w.Align.align(&d, by)
		l.Windows = append(l.Windows, d)
	}
	window("", Window{o.Size, o.RefreshRate, o.RefreshInterval, o.Align, o.Unit}) // before Concurrency, which defaults to Size
	concurrency := o.Concurrency
	if concurrency == 0 {
		concurrency = o.Size
		if o.Unit != "" {
			concurrency = decision.MostUnits
		}
	}
	l.Tokens = share("Concurrency", concurrency)
	l.Guess = milliseconds("WaitForToken", o.WaitForToken)
	l.Lease = milliseconds("Lease", o.Lease)
	l.MaxLease = milliseconds("MaxLease", o.MaxLease)
	l.Start = unixMilli(o.Start)
	check(l.Start > -decision.LastTime && l.Start <= decision.LastTime, "Start is %v; it must be within 278 years of 1970", o.Start)
	for i, w := range o.Windows {
		name := fmt.Sprintf("Windows[%d].", i)
		check(w.Size != 0 && (w.RefreshInterval != 0 || w.Align.Calendar()), "%sSize and RefreshInterval are required", name)
		w.RefreshRate = cmp.Or(w.RefreshRate, w.Size)
		window(name, w)
	}
	check(l.MaxLease >= l.Lease, "MaxLease is %v; it must be at least Lease, which is %v", o.MaxLease, o.Lease)
	if field, _ := l.Ready(); field != "" {
		check(false, "%s is out of range", field)
	}
	return l, wrong
}
