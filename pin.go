package drip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
)

// Pin is a limit that an operator sets beside the limits of the Options. The storage keeps it with the entity, so it
// holds in all processes from the next decision on, and survives their restart.
type Pin struct {
	// Window applies in addition to the entity's windows, counted from the call of Bucket.Pin on. Its Size and
	// RefreshRate default to each other; Share does not apply. RefreshInterval is required, and Align is no calendar's.
	// Size and RefreshRate 0 pin no window.
	Window

	// Concurrency is the most operations in flight at once, as far as the Options do not allow less. 0 pins none.
	Concurrency int

	// For is how long the pin holds. A time above 34 years counts as 34 years. 0 means until Unpin.
	For time.Duration

	// Raise lets the pin exceed the Options: its Concurrency replaces theirs, and its Window raises their window with
	// the same RefreshInterval and Unit. Their other windows still hold. ErrCost goes by the Options, also while a pin
	// would allow more.
	Raise bool
}

// Pin sets p for an entity, or for a shared limit by its SharedID, and replaces the pin before. Operations that have
// run stay counted, and every Ticket and Lease stays valid. Admit postpones an operation that costs more than the Size
// of the pin as long as the pin holds. An error names the wrong field; it is ErrUnit for a unit that no window of the
// Options counts.
func (b *Bucket) Pin(ctx context.Context, entityID string, p Pin) error {
	name, shared := strings.CutPrefix(entityID, sharedMark)
	if !shared && b.of(entityID).trial {
		name = strings.TrimPrefix(name, shadowMark)
	}
	limit, err := p.limit(name, b.units)
	op, a := decision.Op{Kind: decision.Pin, Pin: &limit}, decision.Answer{}
	if p.For > 0 {
		op.For = wholeMilliseconds(p.For)
	}
	if err == nil {
		_, err = b.do(ctx, entityID, 0, &op, &a, time.Time{})
	}
	if err != nil {
		return fmt.Errorf("drip: pin %q: %w", entityID, err)
	}
	return nil
}

// Unpin ends a Pin: the Options alone hold from the next decision on. Operations that were postponed meanwhile keep
// their delays. Without a pin Unpin does nothing.
func (b *Bucket) Unpin(ctx context.Context, entityID string) error {
	return b.tell(ctx, "unpin", entityID, decision.Unpin, 0)
}

// limit returns p for package decision, for an entity or a shared limit by its name. Its error names the field.
func (p *Pin) limit(name string, units units) (l decision.PinnedLimit, err error) {
	switch {
	case p.Size < 0, p.Size > decision.MostUnits:
		return l, fmt.Errorf("Pin.Size is %d; it must be at least 1 and at most %d, or 0", p.Size, int64(decision.MostUnits))
	case p.RefreshRate < 0, p.RefreshRate > decision.MostUnits:
		return l, fmt.Errorf("Pin.RefreshRate is %d; it must be at least 1 and at most %d, or 0", p.RefreshRate, int64(decision.MostUnits))
	case p.Concurrency < 0, p.Concurrency > decision.MostUnits:
		return l, fmt.Errorf("Pin.Concurrency is %d; it must be at least 1 and at most %d, or 0", p.Concurrency, int64(decision.MostUnits))
	case p.For < 0:
		return l, fmt.Errorf("Pin.For is %v; it must be above 0, or 0 for a pin that holds until Unpin", p.For)
	case p.Size == 0 && p.RefreshRate == 0 && p.Window != Window{}:
		return l, errors.New("Pin.Size is 0, with other fields of a Window")
	case p.Size == 0 && p.RefreshRate == 0 && p.Concurrency == 0:
		return l, errors.New("the Pin is empty; it needs a Window or a Concurrency")
	}
	l.Tokens = int64(p.Concurrency)
	if p.Raise {
		l.Raise = 1
	}
	if p.Size == 0 && p.RefreshRate == 0 {
		return l, nil
	}
	most := decision.MostTime * time.Millisecond
	if p.Align.Calendar() {
		return l, errors.New("Pin.Align is a calendar's; a pin has a RefreshInterval")
	}
	if p.RefreshInterval < time.Millisecond || p.RefreshInterval%time.Millisecond != 0 || p.RefreshInterval > most {
		return l, fmt.Errorf("Pin.RefreshInterval is %v; it must be whole milliseconds, at least 1ms and at most %v", p.RefreshInterval, most)
	}
	if err := p.Align.check("Pin.Align"); err != nil {
		return l, err
	}
	unit, err := units.number(p.Unit)
	if err != nil {
		return l, fmt.Errorf("Pin.Unit: %w", err)
	}
	l.Window = decision.Window{
		Size: int64(cmp.Or(p.Size, p.RefreshRate)), Rate: int64(cmp.Or(p.RefreshRate, p.Size)), Interval: p.RefreshInterval.Milliseconds(),
		Unit: unit,
	}
	p.Align.align(&l.Window, asked{entity: name})
	return l, nil
}

// pinOf returns the pin at a time, nil if there is none, and its end, zero if only Unpin ends it.
func pinOf(s *decision.State, units units, now int64) (p *Pin, until time.Time) {
	if len(s.Pins) == 0 || s.Pins[0].End <= max(now, s.Now) {
		return nil, until
	}
	pinned := &s.Pins[0]
	l := &pinned.Limit
	p = &Pin{Concurrency: int(l.Tokens), Raise: l.Raise == 1}
	if l.Window.Size > 0 {
		p.Window = windowOf(l.Window, units)
	}
	if pinned.End < decision.Never {
		until = time.UnixMilli(pinned.End)
		p.For = milliseconds(pinned.End - now)
	}
	return p, until
}

func windowOf(w decision.Window, units units) Window {
	return Window{
		Size: int(w.Size), RefreshRate: int(w.Rate), RefreshInterval: milliseconds(w.Interval), Align: alignmentOf(w), Unit: units.name(w.Unit),
	}
}
