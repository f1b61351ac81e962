package drip

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/drip-go/drip/storage"
)

// Window is a limit of its own beside the first one of Options: capacity that comes with each interval.
type Window struct {
	// Size is the most capacity the window gathers. Required.
	Size int

	// RefreshRate is the capacity it gains each RefreshInterval. Defaults to Size: all of it comes back.
	RefreshRate int

	// RefreshInterval is the length of an interval, in whole milliseconds, aligned to Unix time. Required.
	RefreshInterval time.Duration
}

// Limit is what Options.Limits says about one entity. The fields are those of Options; a zero one is that of the
// bucket's Options, and so are all Windows if there are none.
type Limit struct {
	Size, RefreshRate int
	RefreshInterval   time.Duration
	Windows           []Window
	Concurrency       int
	WaitForToken      time.Duration
}

// ErrCost is returned for a cost below zero, or above what a window can ever hold. Nothing was decided.
var ErrCost = storage.ErrCost

func affordable(l *storage.Limits, cost int64) error {
	most := l.Size
	for _, w := range l.Windows {
		most = min(most, w.Size)
	}
	if cost < 0 || cost > most {
		return fmt.Errorf("%w: %d of at most %d", ErrCost, cost, most)
	}
	return nil
}

// limitsOf is what Options.Limits says of an entity, in the calculator's numbers.
func (b *Bucket) limitsOf(ctx context.Context, entityID string) (storage.Limits, error) {
	own, err := b.options.Limits(ctx, entityID)
	if err != nil {
		return storage.Limits{}, fmt.Errorf("its limit: %w", err)
	}
	o := b.options
	for _, f := range []struct {
		own int
		to  *int
	}{{own.Size, &o.Size}, {own.RefreshRate, &o.RefreshRate}, {own.Concurrency, &o.Concurrency}} {
		if f.own != 0 {
			*f.to = f.own
		}
	}
	if own.RefreshInterval != 0 {
		o.RefreshInterval = own.RefreshInterval
	}
	if own.WaitForToken != 0 {
		o.WaitForToken = own.WaitForToken
	}
	if own.Windows != nil {
		o.Windows = own.Windows
	}
	l, err := o.limits()
	if err != nil {
		return l, fmt.Errorf("its limit: Limit.%w", err)
	}
	return l, nil
}

func (o *Options) setDefaults() {
	for _, f := range []struct {
		v       *int
		initial int
	}{{&o.Size, 100}, {&o.RefreshRate, 50}} {
		if *f.v == 0 {
			*f.v = f.initial
		}
	}
	for _, f := range []struct {
		v       *time.Duration
		initial time.Duration
	}{{&o.RefreshInterval, time.Second}, {&o.WaitForToken, 50 * time.Millisecond}, {&o.Lease, time.Minute}, {&o.MaxLease, time.Hour}} {
		if *f.v == 0 {
			*f.v = f.initial
		}
	}
	if o.Share == 0 {
		o.Share = 1
	}
}

// limits is what the options say in the calculator's numbers. Its error begins with the name of the field.
func (o *Options) limits() (storage.Limits, error) {
	var l storage.Limits
	if !(o.Share > 0 && o.Share <= 1) {
		return l, fmt.Errorf("%s is %v; it must be above 0 and at most 1, or 0 for the default", "Share", o.Share)
	}
	var wrong []error
	share := func(name string, n int) int64 {
		if n < 0 {
			wrong = append(wrong, fmt.Errorf("%s is %d; it must be at least 1, or 0 for the default", name, n))
		}
		part := int64(n)
		if o.Share < 1 {
			part = int64(math.Floor(o.Share*float64(n) + 1e-9)) // 0.29 of 100 is 29, not 28.999999999999996
		}
		if n > 0 && part < 1 {
			wrong = append(wrong, fmt.Errorf("%s is %d, of which the Share leaves nothing", name, n))
		}
		return part
	}
	milliseconds := func(name string, d time.Duration) int64 {
		if d < time.Millisecond || d%time.Millisecond != 0 {
			wrong = append(wrong, fmt.Errorf("%s is %v; it must be whole milliseconds, at least 1ms, or 0 for the default", name, d))
		}
		return d.Milliseconds()
	}
	l.Size = share("Size", o.Size)
	l.RefreshRate = share("RefreshRate", o.RefreshRate)
	l.RefreshInterval = milliseconds("RefreshInterval", o.RefreshInterval)
	for i, w := range o.Windows {
		name := fmt.Sprintf("Windows[%d].", i)
		if w.RefreshRate == 0 {
			w.RefreshRate = w.Size
		}
		if w.Size == 0 || w.RefreshInterval == 0 {
			wrong = append(wrong, errors.New(name+"Size and RefreshInterval are required"))
		}
		l.Windows = append(l.Windows, storage.Window{
			Size:            share(name+"Size", w.Size),
			RefreshRate:     share(name+"RefreshRate", w.RefreshRate),
			RefreshInterval: milliseconds(name+"RefreshInterval", w.RefreshInterval),
		})
	}
	l.Concurrency = share("Concurrency", o.Concurrency)
	l.WaitForToken = milliseconds("WaitForToken", o.WaitForToken)
	l.Lease = milliseconds("Lease", o.Lease)
	l.MaxLease = milliseconds("MaxLease", o.MaxLease)
	if l.MaxLease < l.Lease {
		wrong = append(wrong, fmt.Errorf("MaxLease is %v; it must be at least Lease, which is %v", o.MaxLease, o.Lease))
	}
	l.Start = o.Start.UnixMilli()
	if len(wrong) > 0 {
		return storage.Limits{}, wrong[0]
	}
	return l, nil
}
