package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/storage"
)

// A process that is alone with an entity knows its state: it has read or stored that state itself. Then it decides in Go,
// and swap.lua stores the result if the state is still the same. That takes the server a small part of the time of
// decide.lua. If somebody else has changed the state, decide.lua decides.

const (
	// mostKnown is the most leases of an entity that a process knows. All of them are in each value that it stores.
	mostKnown = 512

	// mostSkips is the most turns that leave an entity to decide.lua after a refusal.
	mostSkips = 64
)

// record is the memory of an entity.
type record struct {
	*entity         // nil if this process does not know its state
	skip, after int // the turns before the next one that reads it: those to come, and those after the next refusal
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
	revision string // as in the value; empty if there is none
	ran      int64  // when a plain token was taken last
	expires  int64  // by the server's clock
}

// newEntity reads a value. ok is false if decide.lua must decide about it.
func newEntity(value []byte) (e *entity, ok bool) {
	v, err := unpack(value)
	if err != nil || v.apart {
		return nil, false
	}
	e = &entity{revision: string(value[8:16]), ran: number(value, 4), expires: decision.Never}
	held, err := storage.Decode(v.Data, &e.state)
	e.leases = storage.NewLeases(held)
	return e, err == nil && e.state.Tokens != 0
}

// part is an entity in a turn.
type part struct {
	keys   [2]string
	record *record
	limits *decision.Limits // of the last call
	stored bool             // by the swap
	read   *command         // after decide.lua; nil if this process does not want to know the state
}

// turn is a batch.Turn on its way.
type turn struct {
	*batch.Turn
	parts map[string]*part // nil if this process remembers nothing

	known  []*batch.Call // decided here
	stored []*part       // by a swap, in the order of its keys
	swap   []any         // its arguments
	left   []*batch.Call // not decided yet

	scripts []call // for the others
	changed []*part
}

// swap is a call of swap.lua.
type swap struct {
	*command
	turns []*turn
}

// call is a call of decide.lua.
type call struct {
	*command
	about []*batch.Call
}

// part returns the part of an entity, with its record.
func (s *Storage) part(t *turn, key string) *part {
	p := t.parts[key]
	if p == nil {
		p = &part{keys: s.keys(key), record: s.memory.Take(key)}
		if p.record == nil {
			p.record = &record{skip: 1}
		}
		t.parts[key] = p
	}
	return p
}

// partsOf returns the parts of a call: its entity, and its shared limits.
func (s *Storage) partsOf(t *turn, c *batch.Call) []*part {
	parts := append(make([]*part, 0, 4), s.part(t, c.Key))
	for i := range c.Within {
		parts = append(parts, s.part(t, c.Within[i].Key))
	}
	return parts
}

// decideKnown decides the calls about entities that this process knows, at the server's time now. It returns the others.
func (s *Storage) decideKnown(t *turn, now int64) (others []*batch.Call) {
	until := now + 1000 // so that the effects of the time are no older
	for _, c := range t.Calls {
		parts := s.partsOf(t, c)
		if slices.ContainsFunc(parts, func(p *part) bool { return !p.known(now) }) {
			others = append(others, c)
			continue
		}
		s.apply(c, parts, now)
		if c.Op.Kind == decision.Admit || c.Op.Kind == decision.Renew {
			until = min(until, now+c.Limits.Lease/10) // a lease begins now, and is not given when most of it is over
		}
		t.known = append(t.known, c)
		for _, p := range parts {
			until = min(until, p.until(&c.Op, now))
			if !p.stored {
				p.stored = true
				t.stored = append(t.stored, p)
			}
		}
	}
	if len(t.known) == 0 {
		return others
	}
	if t.swap = s.pack(t.stored, now, until); t.swap != nil {
		return others
	}
	for _, p := range t.stored {
		p.stored = false
		p.record.refused()
	}
	t.stored, t.known = nil, nil
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

// until returns the time from which an operation would count in another interval.
func (p *part) until(op *decision.Op, now int64) int64 {
	until := int64(decision.Never)
	for _, line := range p.record.state.Lines {
		if w := line.Window; w.Size > 0 && len(p.record.state.Pins) > 0 { // it may be no window of the Limits
			until = min(until, w.Next(now))
		}
	}
	if op.Now == decision.OwnClock && op.Kind != decision.ReturnToken {
		for _, w := range p.limits.Windows {
			until = min(until, w.Next(now))
		}
	}
	return until
}

// apply decides a call about known entities.
func (s *Storage) apply(c *batch.Call, parts []*part, now int64) {
	at, own := c.Op.Now, parts[0]
	if at == decision.OwnClock {
		at = now
	}
	own.limits = &c.Limits
	shared := make([]decision.Shared, len(c.Within))
	plain := make([]int64, len(parts))
	for i, p := range parts {
		plain[i] = p.record.state.Plain
		if i > 0 {
			w := &c.Within[i-1]
			p.limits = w.Limits
			shared[i-1] = w.In(&p.record.state, p.record.leases)
		}
	}
	c.Answer, c.Err = decision.Answer{}, nil
	c.Limits.ApplyWithin(&own.record.state, own.record.leases, shared, &c.Op, at, &c.Answer)
	for i, p := range parts {
		if p.record.state.Plain > plain[i] {
			p.record.ran = now
		}
	}
}

// pack makes the arguments of swap.lua for a turn. They are nil if decide.lua must decide.
func (s *Storage) pack(parts []*part, now, until int64) []any {
	const least = 3 // ms, so that the server hardly ever refuses
	if until-now < least {
		return nil
	}
	args := append(make([]any, 0, 1+5*len(parts)), appendNumbers(nil, int64(len(parts)), 1000*now, 1000*until-1))
	for _, p := range parts {
		e := p.record.entity
		held := e.leases.Held()
		if e.state.Tokens == 0 || len(held) > mostKnown {
			return nil
		}
		plain := e.state.Plain
		e.state.Plain = 0 // Until is for an entity whose plain tokens are back
		forget := max(p.limits.Until(&e.state), e.leases.Last())
		e.state.Plain = plain
		keep := forget - e.state.Now
		if plain > 0 {
			forget, keep = decision.Never, max(keep, e.ran+s.maxHold-now)
		}
		if e.state.Now-now > near || now-e.state.Now > near {
			keep = max(keep, s.maxHold)
		}
		keep = timeToLive(keep)
		e.expires = now + keep
		first, last := ends(held)
		behind, ok := appendEncoded(appendNumbers(nil, e.state.Now, forget, e.ran, 0, first, last), storage.Encode(&e.state, held))
		if !ok {
			return nil
		}
		args = append(args, e.revision, before, behind, keep, "")
	}
	return args
}

// script leaves calls to decide.lua. Afterwards it reads the states that this process wants to know.
func (s *Storage) script(t *turn, calls []*batch.Call) {
	for len(calls) > 0 {
		key, others := calls[0].Key, []*batch.Call(nil)
		own := calls[:0:0]
		for _, c := range calls {
			if c.Key == key {
				own = append(own, c)
			} else {
				others = append(others, c)
			}
		}
		for calls = others; len(own) > 0; {
			n := together(own)
			t.scripts = append(t.scripts, call{s.decideCommand(own[:n]), own[:n]})
			own = own[n:]
		}
	}
	if t.parts == nil {
		return
	}
	for _, script := range t.scripts {
		for _, p := range s.partsOf(t, script.about[0]) {
			if slices.Contains(t.changed, p) {
				continue
			}
			t.changed = append(t.changed, p)
			if p.record.skip--; p.record.skip < 0 {
				p.record.skip = 0
				p.read = &command{StringCmd: goredis.NewStringCmd(context.Background(), "get", p.keys[0])}
			}
		}
	}
}

// commands returns the commands of a turn that follow the swaps.
func (t *turn) commands() (all []*command) {
	for _, c := range t.scripts {
		all = append(all, c.command)
	}
	for _, p := range t.changed {
		if p.read != nil {
			all = append(all, p.read)
		}
	}
	return all
}

// swaps makes the calls of swap.lua for turns. If the server has slots each turn has its own: their keys may be in
// other slots.
func (s *Storage) swaps(turns []*turn) (swaps []swap) {
	const mostKeys = 256
	var keys []string
	var args []any
	var stored []*turn
	for i, t := range turns {
		if t.swap != nil {
			for _, p := range t.stored {
				keys = append(keys, p.keys[:]...)
			}
			args, stored = append(args, t.swap...), append(stored, t)
		}
		if len(stored) > 0 && (len(keys) >= mostKeys || i == len(turns)-1 || s.cluster != nil || s.slots.Load()) {
			swaps = append(swaps, swap{swapScript.command(keys, args...), stored})
			keys, args, stored = nil, nil, nil
		}
	}
	return swaps
}

// take handles the results of a swap.
func (l *lane) take(c swap) {
	results, err := c.swapped(len(c.turns))
	err = l.storage.failure(err)
	for i, t := range c.turns {
		switch {
		case err != nil && len(c.turns) > 1 && goredis.HasErrorPrefix(err, "CROSSSLOT"):
			l.storage.slots.Store(true)
			t.left = t.known
		case err != nil:
			fail(t.known, err)
		case results[i] > 0:
			l.clock.Heard(results[i], false)
			for _, p := range t.stored {
				p.record.swapped(results[i])
			}
			continue
		default:
			t.left = t.known
			if entity := -results[i] - 1; entity < int64(len(t.stored)) {
				t.stored[entity].record.refused()
			} else if entity > int64(len(t.stored)) { // the time
				l.clock.Heard(-results[i], true)
				for _, p := range t.stored {
					p.record.refused()
				}
			}
		}
		for _, p := range t.stored {
			p.record.entity, p.stored = nil, false
		}
	}
}

var errNotSwap = errors.New("the answer is not swap.lua's")

// swapped returns the results of swap.lua for so many groups.
func (c *command) swapped(groups int) ([]int64, error) {
	result, err := c.Result()
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(result)
	results := make([]int64, len(fields))
	for i, f := range fields {
		if results[i], err = strconv.ParseInt(f, 10, 64); err != nil || results[i] == 0 {
			return nil, errNotSwap
		}
	}
	if len(results) != groups {
		return nil, errNotSwap
	}
	return results, nil
}

// took handles the results of decide.lua, and what was read afterwards.
func (l *lane) took(t *turn) {
	for _, c := range t.scripts {
		l.storage.take(c.command, c.about)
	}
	for _, p := range t.changed {
		p.record.entity = nil
		if p.read == nil {
			continue
		}
		value, err := p.read.Bytes()
		if e, ok := newEntity(value); err == nil && ok {
			p.record.entity = e
			if _, known := l.clock.Now(); !known { // a revision is no earlier than the time of the server
				l.clock.Heard(number([]byte(e.revision), 0), false)
			}
		} else if err == nil {
			p.record.refused()
		}
		p.read = nil
	}
	t.known, t.stored, t.swap, t.scripts, t.changed = nil, nil, nil, nil, nil
}

// swapped records that the state was stored at that time.
func (r *record) swapped(micros int64) {
	if r.revision != "" {
		micros = max(micros, number([]byte(r.revision), 0)+1)
	}
	r.revision = string(appendNumbers(nil, micros))
	r.after = max(0, r.after-1)
}
