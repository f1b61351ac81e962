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

// A proxy that spreads keys over servers sends a call to the server of its first key, which lacks the values of the others. If as
// many values in a row as found were there, there is no such proxy.
const found = 1000

// swaps makes the calls of swap.lua for turns. A turn has its own if the server has slots, since its keys may be in another one.
// So has a turn with an entity that has no value, if its key may be on another server.
func (s *Storage) swaps(turns []*turn) (swaps []swap) {
	const mostKeys = 256
	var together []*turn
	var numbers []byte
	keys, args := make([]string, 0, len(turns)), make([]any, 1, 1+2*len(turns))
	send := func() {
		if len(together) > 0 {
			args[0] = numbers
			swaps = append(swaps, swap{swapScript.command(keys, args...), together})
			together, numbers, keys, args = nil, nil, keys[:0], args[:1] // the command has copies of keys and args
		}
	}
	slots, spread := s.cluster != nil || s.slots.Load(), s.found.Load() < found
	for _, t := range turns {
		if len(t.swap) == 0 {
			continue
		}
		apart := slots || spread && t.absent
		if apart || len(keys) >= mostKeys {
			send()
		}
		for _, p := range t.stored {
			keys = append(keys, p.record.key)
		}
		together, numbers, args = append(together, t), append(numbers, t.numbers...), append(args, t.swap...)
		if apart {
			send()
		}
	}
	send()
	return swaps
}

// stored handles the results of a swap. It returns false if there are none.
func (l *lane) stored(c swap) bool {
	s := l.storage
	now, refused, err := c.swapped(len(c.turns))
	err = s.failure(err)
	if err == nil {
		l.clock.Heard(now, false)
	}
	for i, t := range c.turns {
		entity, left := refused[i]
		switch {
		case err != nil && len(c.turns) > 1 && goredis.HasErrorPrefix(err, "CROSSSLOT"):
			s.slots.Store(true)
			t.left = t.known
		case err != nil:
			fail(t.known, err)
		case !left:
			if i > 0 && !t.absent {
				s.found.Add(1)
			}
			for _, p := range t.stored {
				p.record.after = max(0, p.record.after-1)
			}
			continue
		case entity != 0 && max(entity, -entity) <= int64(len(t.stored)):
			t.left = t.known
			if entity < 0 {
				s.found.Store(0)
			} else if i > 0 {
				s.found.Add(1)
			}
			t.stored[max(entity, -entity)-1].record.refused()
		default: // the time
			t.left = t.known
			l.clock.Heard(now, true)
			for _, p := range t.stored {
				p.record.refused()
			}
		}
		for _, p := range t.stored {
			p.record.entity, p.stored = nil, false
		}
	}
	return err == nil
}

var errNotSwap = errors.New("the answer is not swap.lua's")

// swapped returns the result of swap.lua for so many groups: the time, and of each group that is not stored the entity that
// is to blame, counted from 1, or from -1 if it has no value, or 0.
func (c *command) swapped(groups int) (now int64, refused map[int]int64, err error) {
	result, err := c.Result()
	if err != nil {
		return 0, nil, err
	}
	fields := strings.Fields(result)
	numbers := make([]int64, len(fields))
	for i, f := range fields {
		if numbers[i], err = strconv.ParseInt(f, 10, 64); err != nil {
			return 0, nil, errNotSwap
		}
	}
	if len(numbers)%2 == 0 {
		return 0, nil, errNotSwap
	}
	refused = map[int]int64{}
	for i := 1; i < len(numbers); i += 2 {
		if numbers[i] < 0 || numbers[i] >= int64(groups) {
			return 0, nil, errNotSwap
		}
		refused[int(numbers[i])] = numbers[i+1]
	}
	return numbers[0], refused, nil
}
