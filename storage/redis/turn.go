package redis

import (
	"context"
	"errors"
	"slices"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/storage"
)

// turn is a batch.Turn on its way.
type turn struct {
	*batch.Turn
	remembers bool
	parts     map[string]*part // if this process remembers anything
	room      []*part          // of the results of partsOf
	buffers   *buffers         // of the batch

	known   []*batch.Call // decided here
	stored  []*part       // by a swap, in the order of its keys
	swap    []any         // its arguments: see swap.lua
	numbers []byte
	absent  bool          // one of them has no value
	left    []*batch.Call // not decided yet

	scripts []call // for the others
	changed []*part
}

// part is an entity in a turn.
type part struct {
	record *record
	limits *decision.Limits // of the last call
	stored bool             // by the swap
	read   *command         // after decide.lua; nil if this process does not want to know the state
}

// call is a call of decide.lua.
type call struct {
	*command
	about []*batch.Call
}

// buffers are used again by other batches: each call would leave two kilobytes to the garbage collector.
type buffers struct {
	values  []byte // of the entities in a swap, one after the other
	encoded []byte
	shared  []decision.Shared
	plain   []int64
	turns   []*turn
}

// begin makes t a turn of another batch.
func (t *turn) begin(w *batch.Turn, remembers bool) {
	clear(t.parts)
	*t = turn{
		Turn: w, remembers: remembers, parts: t.parts, buffers: t.buffers,
		room: t.room[:0], known: t.known[:0], stored: t.stored[:0], swap: t.swap[:0], numbers: t.numbers[:0], scripts: t.scripts[:0], changed: t.changed[:0],
	}
}

var unused = sync.Pool{New: func() any { return new(buffers) }}

// decide decides the calls of a batch in one pipeline, and the refused ones in a second pipeline.
func (l *lane) decide(waiting []*batch.Turn, answered func([]*batch.Turn)) {
	s, b := l.storage, unused.Get().(*buffers)
	b.values = b.values[:0]
	for len(b.turns) < len(waiting) {
		b.turns = append(b.turns, &turn{buffers: b, parts: map[string]*part{}})
	}
	turns := slices.Clone(b.turns[:len(waiting)])
	var open *turn // its last call of decide.lua may take entities of other turns
	for i, t := range turns {
		t.begin(waiting[i], l.clock != nil)
		others := t.Calls
		if t.remembers {
			if now, known := l.clock.Now(); known {
				others = s.decideKnown(t, now)
			}
		}
		open = s.script(t, others, open)
	}
	lost := false // a hook of the client that has given up a call may still send it
	for len(turns) > 0 {
		swaps := s.swaps(turns)
		var commands []*command
		for _, c := range swaps {
			commands = append(commands, c.command)
		}
		for _, t := range turns {
			commands = append(commands, s.commands(t)...)
		}
		run(s.client, commands)
		for _, c := range swaps {
			lost = !l.stored(c) || lost
		}
		var done []*batch.Turn
		open = nil
		turns = slices.DeleteFunc(turns, func(t *turn) bool {
			l.finish(t)
			if left := t.left; len(left) > 0 {
				t.left = nil
				open = s.script(t, left, open)
				return false
			}
			for key, p := range t.parts {
				s.memory.Put(key, p.record)
			}
			done = append(done, t.Turn)
			return true
		})
		answered(done)
	}
	if !lost {
		unused.Put(b)
	}
}

// part returns the part of an entity, with its record.
func (s *Storage) part(t *turn, key string) *part {
	p := t.parts[key]
	if p == nil {
		p = &part{record: s.memory.Take(key)}
		if p.record == nil {
			p.record = &record{key: s.key(key)}
		}
		t.parts[key] = p
	}
	return p
}

// partsOf returns the parts of a call: its entity, and its shared limits.
func (s *Storage) partsOf(t *turn, c *batch.Call) []*part {
	from := len(t.room)
	t.room = append(t.room, s.part(t, c.Key))
	for i := range c.Within {
		t.room = append(t.room, s.part(t, c.Within[i].Key))
	}
	return t.room[from:]
}

// script leaves calls to decide.lua. Afterwards it reads the states that this process wants to know. open is a turn whose last
// call of decide.lua takes entities of other turns, or nil, and script returns the next one.
func (s *Storage) script(t *turn, calls []*batch.Call, open *turn) *turn {
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
			t.join(own[:n], open)
			if t.remembers {
				s.readAfter(t, own[0])
			}
			own = own[n:]
		}
	}
	// Keys that are not all on one server, or in slots, need calls of their own: see swaps.
	last := len(t.scripts) - 1
	if last >= 0 && len(t.scripts[last].about[0].Within) == 0 && s.cluster == nil && !s.slots.Load() && s.found.Load() >= found {
		return t
	}
	return open
}

// readAfter has the states that a call changes read after decide.lua, if this process wants to know them.
func (s *Storage) readAfter(t *turn, c *batch.Call) {
	for _, p := range s.partsOf(t, c) {
		if slices.Contains(t.changed, p) {
			continue
		}
		t.changed = append(t.changed, p)
		if p.record.skip--; p.record.skip < 0 {
			p.record.skip = 0
			p.read = &command{StringCmd: goredis.NewStringCmd(context.Background(), "get", p.record.key)}
		}
	}
}

// join adds calls about one entity to a call of decide.lua. Entities within the same shared limits share one, so that it
// reads and writes these once, and entities without share the last one of open. A later call about the same entity is not overtaken.
func (t *turn) join(calls []*batch.Call, open *turn) {
	first := calls[0]
	if len(first.Within) == 0 && open != nil {
		if c := &open.scripts[len(open.scripts)-1]; !c.has(first.Key) && len(c.about)+len(calls) <= maxEntities {
			c.about = append(c.about, calls...)
			return
		}
	}
	for i := len(t.scripts) - 1; i >= 0 && len(first.Within) > 0; i-- {
		c := &t.scripts[i]
		if c.has(first.Key) {
			break
		}
		if len(c.about)+len(calls) <= maxOps && slices.EqualFunc(c.about[0].Within, first.Within, sameLimit) {
			c.about = append(c.about, calls...)
			return
		}
	}
	t.scripts = append(t.scripts, call{about: slices.Clone(calls)})
}

// has reports whether a call of decide.lua is about an entity.
func (c *call) has(key string) bool {
	return slices.ContainsFunc(c.about, func(o *batch.Call) bool { return o.Key == key })
}

// decideCommand makes the call of decide.lua for calls within the same shared limits. Those about one entity stand
// together, and have the same limits.
func (s *Storage) decideCommand(calls []*batch.Call) *command {
	within := calls[0].Within
	var keys []string
	args := []any{s.maxHold, len(within)}
	for i := range within {
		w := &within[i]
		shared := s.keys(w.Key)
		keys = append(keys, shared[:]...)
		args = append(args, string(appendNumbers(nil, w.ID))+packLimits(w.Limits))
	}
	for len(calls) > 0 {
		first := calls[0]
		own, n := s.keys(first.Key), 1
		for n < len(calls) && calls[n].Key == first.Key {
			n++
		}
		counts := appendNumbers(nil, int64(n))
		for _, w := range first.Within {
			counts = appendNumbers(counts, w.Weight)
		}
		keys = append(keys, own[:]...)
		args = append(args, packLimits(&first.Limits), counts)
		for _, c := range calls[:n] {
			args = append(args, packOp(&c.Op))
		}
		calls = calls[n:]
	}
	return decideScript.command(keys, args...)
}

// together returns how many of the calls about one entity share a call of decide.lua.
func together(calls []*batch.Call) int {
	first := calls[0]
	for i, c := range calls {
		same := i < maxOps && equal(&c.Limits, &first.Limits) && slices.EqualFunc(c.Within, first.Within, func(a, b storage.Within) bool {
			return sameLimit(a, b) && a.Weight == b.Weight
		})
		if !same {
			return i
		}
	}
	return len(calls)
}

func sameLimit(a, b storage.Within) bool {
	return a.Key == b.Key && a.ID == b.ID && equal(a.Limits, b.Limits)
}

func equal(a, b *decision.Limits) bool {
	return a.Tokens == b.Tokens && a.Guess == b.Guess && a.Lease == b.Lease && a.MaxLease == b.MaxLease &&
		a.Start == b.Start && a.FirstCome == b.FirstCome && slices.Equal(a.Windows, b.Windows)
}

// commands returns the commands of a turn that follow the swaps.
func (s *Storage) commands(t *turn) (all []*command) {
	for i := range t.scripts {
		c := &t.scripts[i]
		c.command = s.decideCommand(c.about)
		all = append(all, c.command)
	}
	for _, p := range t.changed {
		if p.read != nil {
			all = append(all, p.read)
		}
	}
	return all
}

// finish handles the results of decide.lua and of the reads after it.
func (l *lane) finish(t *turn) {
	for _, c := range t.scripts {
		l.storage.decided(c)
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
				l.clock.Heard(e.revision, false)
			}
		} else if err == nil {
			p.record.refused()
		}
		p.read = nil
	}
	t.known, t.stored, t.swap, t.numbers, t.scripts, t.changed = t.known[:0], t.stored[:0], t.swap[:0], t.numbers[:0], t.scripts[:0], t.changed[:0]
}

// decided sets the answers of a call of decide.lua.
func (s *Storage) decided(c call) {
	calls := c.about
	answers, err := c.Result()
	if err == nil && !s.reached.Load() {
		s.reached.Store(true)
	}
	if goredis.HasErrorPrefix(err, "CROSSSLOT") {
		s.slots.Store(true)
	}
	err = s.failure(err)
	for i := 0; i < len(calls) && err == nil; i++ {
		c := calls[i]
		c.Answer, c.Err = decision.Answer{}, nil
		if answers, err = take(answers, &c.Op, len(c.Within), &c.Answer); errors.Is(err, ErrNotState) {
			fail(calls[i:i+1], err)
			err = nil
		} else if err != nil {
			calls = calls[i:]
		}
	}
	if err != nil {
		fail(calls, err)
	}
}

func fail(calls []*batch.Call, err error) {
	for _, c := range calls {
		c.Answer, c.Err = decision.Answer{}, err
		c.Again = again(err) || c.Op.Kind == decision.Cancel && c.Op.Ticket.Number == 0 && !errors.Is(err, ErrClosed)
	}
}
