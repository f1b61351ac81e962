package redis

import (
	"errors"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// swap is a call of swap.lua.
type swap struct {
	*command
	turns []*turn
}

// swaps makes the calls of swap.lua for turns. A turn has its own if the server has slots, since its keys may be in another one.
// So has a turn with an entity that has no value: a proxy that spreads the keys over servers sends the call to one of them, where
// no other entity is without its value.
func (s *Storage) swaps(turns []*turn) (swaps []swap) {
	const mostKeys = 256
	var together []*turn
	keys, args := []string(nil), []any(nil)
	send := func() {
		if len(together) > 0 {
			swaps = append(swaps, swap{swapScript.command(keys, args...), together})
			together, keys, args = nil, nil, nil
		}
	}
	slots := s.cluster != nil || s.slots.Load()
	for _, t := range turns {
		if t.swap == nil {
			continue
		}
		if t.apart || slots || len(keys) >= mostKeys {
			send()
		}
		for _, p := range t.stored {
			keys = append(keys, p.key)
		}
		together, args = append(together, t), append(args, t.swap...)
		if t.apart {
			send()
		}
	}
	send()
	return swaps
}

// stored handles the results of a swap.
func (l *lane) stored(c swap) {
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
				p.record.after = max(0, p.record.after-1)
			}
			continue
		default:
			t.left = t.known
			if entity := -results[i] - 1; entity < int64(len(t.stored)) {
				t.stored[entity].record.refused()
			} else { // the time
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
