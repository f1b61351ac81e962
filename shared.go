package drip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// ErrNoShared means that Options.Shared has no limit of this name. Nothing was decided.
var ErrNoShared = errors.New("no such shared limit")

// mostShared is the most shared limits of a Bucket: a ticket has a bit for each.
const mostShared = 64

// allShared has the bits of all shared limits.
const allShared = ^uint64(0)

// sharedMark begins the ID of a shared limit.
const sharedMark = "shared:"

// SharedID returns the ID of a shared limit, "shared:" and its name, for the methods that take an entity. Throttled
// closes the limit for every entity within it. Pause, Resume and Reset work alike, and Inspect returns its remaining
// capacity. These methods return ErrNoShared for a name that Options.Shared does not have. GetDelay, Admit and the
// calls about a lease take entities only, and no entity begins with "shared:".
func SharedID(name string) string { return sharedMark + name }

// sharedLimit is one of Options.Shared.
type sharedLimit struct {
	name      string
	id        int64   // decision.Shared.Key
	options   Options // the fields of its Limit, and the Bucket's other fields
	units     units
	firstCome bool
	moves     bool            // the windows depend on the time
	limits    decision.Limits // the limits of options, without Options.SharedLimits
}

// share prepares the limits in Options.Shared: the limits on trial, or all others.
func (b *Bucket) share(o *Options) error {
	if len(o.Shared) > mostShared {
		return sharedError(" has %d limits; it must have at most %d", len(o.Shared), mostShared)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Shared)) {
		if name == "" {
			return sharedError(" has a limit without a name")
		}
		limit := o.Shared[name]
		if limit.Shadow != b.trial {
			continue
		}
		s := sharedLimit{name: name, id: idOf(name), options: *o, units: b.units, firstCome: limit.FirstCome}
		own := &s.options
		own.setFirst(Window{})
		own.Windows, own.Concurrency = nil, 0
		own.override(&limit)
		var err error
		if s.limits, err = s.of(own, decision.OwnClock); err != nil {
			return sharedError("[%q].%w", name, err)
		}
		if slices.ContainsFunc(b.shared, func(other sharedLimit) bool { return other.id == s.id }) {
			return sharedError("[%q]: the name collides with another; choose another one", name)
		}
		s.moves = own.moves()
		b.shared = append(b.shared, s)
	}
	b.all = 1<<len(b.shared) - 1
	if slices.ContainsFunc(b.shared, func(s sharedLimit) bool { return s.moves }) || o.Weight != nil || o.SharedLimits != nil {
		return nil
	}
	for i := range b.shared {
		b.alike = append(b.alike, b.shared[i].within(&b.shared[i].limits, 1))
	}
	return nil
}

// sharedError returns an error that names the field.
func sharedError(format string, args ...any) error { return fmt.Errorf("Shared"+format, args...) }

// idOf returns a number that tells a name from others, never 0.
func idOf(name string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return int64(h.Sum64()>>12) | 1
}

// of returns the limit of the options at the time now or OwnClock. It may have tokens and no window.
func (s *sharedLimit) of(o *Options, now int64) (decision.Limits, error) {
	own := *o
	if own.Size == 0 && own.RefreshRate == 0 && (own.RefreshInterval != 0 || own.Align != Alignment{} || own.Unit != "") {
		return decision.Limits{}, fmt.Errorf("%s is 0; RefreshInterval, Align and Unit need one", "Size")
	}
	if own.Size == 0 && own.RefreshRate == 0 && len(own.Windows) > 0 { // the first of them takes their place
		own.setFirst(own.Windows[0])
		own.Windows = own.Windows[1:]
	}
	if own.Size == 0 && own.RefreshRate == 0 {
		if own.Concurrency == 0 {
			return decision.Limits{}, fmt.Errorf("%s is 0; it needs a Size, a RefreshRate, Windows or a Concurrency", "Size")
		}
		own.Size, own.Start = decision.MostUnits, time.UnixMilli(0) // it gathers nothing, so it begins full
	}
	own.Size, own.RefreshRate = cmp.Or(own.Size, own.RefreshRate), cmp.Or(own.RefreshRate, own.Size)
	if !own.Align.Calendar() {
		own.RefreshInterval = cmp.Or(own.RefreshInterval, time.Second)
	}
	own.Concurrency = cmp.Or(own.Concurrency, decision.MostUnits)
	l, err := own.limits(s.units, askedAt(s.name, now))
	if s.firstCome {
		l.FirstCome = 1
	}
	return l, err
}

func (s *sharedLimit) within(l *decision.Limits, weight int64) storage.Within {
	return storage.Within{Key: SharedID(s.name), Limits: l, ID: s.id, Weight: weight}
}

// place returns the index of the shared limit with this name in b.shared.
func (b *Bucket) place(name string) (int, error) {
	i := slices.IndexFunc(b.shared, func(s sharedLimit) bool { return s.name == name })
	if i < 0 {
		return 0, fmt.Errorf("%w: %q", ErrNoShared, name)
	}
	return i, nil
}

// named returns the bits of the shared limits with these names; nil means all.
func (b *Bucket) named(names []string) (which uint64, err error) {
	if names == nil {
		return b.all, nil
	}
	for _, name := range names {
		if i, err := b.place(name); err == nil {
			which |= 1 << i
		} else if limit, ok := b.options.Shared[name]; !ok || limit.Shadow == b.trial {
			return 0, err
		}
	}
	return which, nil
}

// within returns the shared limits of an operation of an entity.
func (b *Bucket) within(ctx context.Context, entityID string, which uint64, now int64) ([]storage.Within, error) {
	if which == 0 {
		return nil, nil
	}
	if which == b.all && b.alike != nil {
		return b.alike, nil
	}
	weight := int64(1)
	if b.options.Weight != nil {
		name := entityID
		if b.trial {
			name = strings.TrimPrefix(name, shadowMark)
		}
		weight = int64(max(1, min(b.options.Weight(name), mostWeight)))
	}
	within := make([]storage.Within, 0, bits.OnesCount64(which))
	for i := range b.shared {
		if which&(1<<i) == 0 {
			continue
		}
		l, err := b.limitsOfShared(ctx, &b.shared[i], now)
		if err != nil {
			return nil, err
		}
		within = append(within, b.shared[i].within(l, weight))
	}
	return within, nil
}

const mostWeight = 1_000_000

// limitsOfShared returns the limit as Options.SharedLimits has it, at the time now or OwnClock.
func (b *Bucket) limitsOfShared(ctx context.Context, s *sharedLimit, now int64) (*decision.Limits, error) {
	if b.options.SharedLimits == nil && !s.moves {
		return &s.limits, nil
	}
	o := s.options
	if o.SharedLimits != nil {
		changed, err := o.SharedLimits(ctx, s.name)
		if err != nil {
			return nil, fmt.Errorf("the limit %q: %w", s.name, err)
		}
		o.override(&changed)
	}
	l, err := s.of(&o, now)
	if err != nil {
		return nil, fmt.Errorf("the limit %q: Limit.%w", s.name, err)
	}
	return &l, nil
}

// limitName returns the name of the limit of an answer, "" for the entity's own.
func limitName(within []storage.Within, limit int64) string {
	if limit == 0 {
		return ""
	}
	return strings.TrimPrefix(within[limit-1].Key, sharedMark)
}
