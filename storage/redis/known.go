package redis

import (
	"slices"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/storage"
)

// A process that is alone with an entity knows its state: it has read or stored that state itself. Then it decides in Go,
// and swap.lua stores the result if the state is still the same. That takes the server a small part of the time of
// decide.lua. If somebody else has changed the state, decide.lua decides.

const (
	// mostKnown is the most leases of an entity that a process knows: as many as decide.lua leaves in a value.
	mostKnown = 512

	// mostSkips is the most turns that leave an entity to decide.lua after a refusal.
	mostSkips = 64
)

// record is the memory of an entity.
type record struct {
	*entity            // nil if this process does not know its state
	key         string // of the state
	skip, after int    // the turns before the next one that reads it: those to come, and those after the next refusal
}

// refused leaves the entity to decide.lua for twice as many turns as before.
func (r *record) refused() {
	r.after = min(2*r.after+1, mostSkips)
	r.skip = r.after
}

// entity is a state as this process has stored it.
type entity struct {
	state    decision.State
	leases   *storage.Leases
	revision int64 // of the value; 0 if there is none
	ran      int64 // when a plain token was taken last
	expires  int64 // by the server's clock
}

// newEntity reads a value. ok is false if decide.lua must decide about it.
func newEntity(value []byte) (e *entity, ok bool) {
	v, err := unpack(value)
	if err != nil || v.apart {
		return nil, false
	}
	e = &entity{revision: number(value, 1), ran: number(value, 4), expires: decision.Never}
	if stored := number(value, 1) / 1000; v.Until != decision.Never && v.Now-stored <= near && stored-v.Now <= near {
		e.expires = stored + v.Until - v.Now
	}
	held, err := storage.Decode(v.Data, &e.state)
	e.leases = storage.NewLeases(held)
	return e, err == nil && e.state.Tokens != 0
}

// decideKnown decides the calls about entities that this process knows, at the server's time now. It returns the others.
func (s *Storage) decideKnown(t *turn, now int64) (others []*batch.Call) {
	until := int64(decision.Never)
	for _, c := range t.Calls {
		parts := s.partsOf(t, c)
		span := c.Op.For > 0 && c.Op.Now == decision.OwnClock // it begins at the server's time: now may be a little earlier
		if span || slices.ContainsFunc(parts, func(p *part) bool { return !p.known(now) }) {
			others = append(others, c)
			continue
		}
		t.apply(c, parts, now)
		t.known = append(t.known, c)
		for _, p := range parts {
			until = min(until, p.limits.Holds(&p.record.state, &c.Op, now))
			if !p.stored {
				p.stored = true
				t.stored = append(t.stored, p)
			}
		}
	}
	if len(t.known) == 0 {
		return others
	}
	if s.pack(t, now, until) {
		return others
	}
	for _, p := range t.stored {
		p.stored = false
	}
	t.stored, t.known, t.absent = t.stored[:0], t.known[:0], false
	return t.Calls
}

// known reports whether this process knows the state at the server's time now.
func (p *part) known(now int64) bool {
	e := p.record.entity
	if e != nil && e.expires <= now {
		*e = entity{leases: storage.NewLeases(nil), expires: decision.Never}
	}
	return e != nil
}

// apply decides a call about known entities.
func (t *turn) apply(c *batch.Call, parts []*part, now int64) {
	at, own := c.Op.Now, parts[0]
	if at == decision.OwnClock {
		at = now
	}
	own.limits = &c.Limits
	shared, plain := t.buffers.shared[:0], t.buffers.plain[:0]
	for i, p := range parts {
		plain = append(plain, p.record.state.Plain)
		if i > 0 {
			w := &c.Within[i-1]
			p.limits = w.Limits
			shared = append(shared, w.In(&p.record.state, p.record.leases))
		}
	}
	t.buffers.shared, t.buffers.plain = shared, plain
	c.Answer, c.Err = decision.Answer{}, nil
	c.Limits.ApplyWithin(&own.record.state, own.record.leases, shared, &c.Op, at, &c.Answer)
	for i, p := range parts {
		if p.record.state.Plain > plain[i] {
			p.record.ran = now
		}
	}
}

// pack makes the arguments of swap.lua for a turn. It returns false if decide.lua must decide.
func (s *Storage) pack(t *turn, now, until int64) bool {
	const least = 3 // ms, so that the server hardly ever refuses
	if until-now < least {
		for _, p := range t.stored {
			p.record.refused()
		}
		return false
	}
	args, numbers := t.swap, appendNumbers(t.numbers, int64(len(t.stored)), 1000*now, 1000*until-1)
	for _, p := range t.stored {
		before := p.record.revision
		p.record.revision = max(1000*now, before+1)
		value, keep, ok := s.value(p, now, t.buffers)
		if !ok {
			p.record.refused()
			return false
		}
		numbers, args = appendNumbers(numbers, before), append(args, value, keep)
		t.absent = t.absent || before == 0
	}
	t.swap, t.numbers = args, numbers
	return true
}

// value returns the value of a known entity, in a buffer, and its time to live.
func (s *Storage) value(p *part, now int64, b *buffers) (value []byte, keep int64, ok bool) {
	e := p.record.entity
	held := e.leases.All()
	if e.state.Tokens == 0 || len(held) > mostKnown {
		return nil, 0, false
	}
	plain := e.state.Plain
	e.state.Plain = 0 // Until is for an entity whose plain tokens are back
	until := max(p.limits.Until(&e.state), e.leases.Last())
	e.state.Plain = plain
	keep = until - e.state.Now
	if plain > 0 {
		until, keep = decision.Never, max(keep, e.ran+s.maxHold-now)
	}
	if e.state.Now-now > near || now-e.state.Now > near {
		keep = max(keep, s.maxHold)
	}
	keep = timeToLive(keep)
	e.expires = now + keep
	first, last := ends(held)
	b.encoded = storage.AppendEncode(b.encoded[:0], &e.state, held)
	all, ok := appendEncoded(appendNumbers(b.values, layout, e.revision, e.state.Now, until, e.ran, 0, first, last), b.encoded)
	if !ok {
		return nil, 0, false
	}
	value, b.values = all[len(b.values):], all
	return value, keep, true
}
