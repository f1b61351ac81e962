package consumer

import (
	"cmp"
	"slices"
	"sort"
)

// dueList holds the messages that came back a moment before they are due, the first ones first. The loop that takes deliveries
// owns it, with one timer for all: thousands of sleeping goroutines would wake up one by one, and grow their stacks again.
type dueList []*delivery

// until returns how many messages are held until by or earlier.
func (l dueList) until(by int64) int {
	return sort.Search(len(l), func(i int) bool { return l[i].at > by })
}

func (l *dueList) add(d *delivery) { *l = slices.Insert(*l, l.until(d.at), d) }

// next returns until when the next message is held, in us since 1970, 0 if there is none.
func (l dueList) next() int64 {
	if len(l) == 0 {
		return 0
	}
	return l[0].at
}

// release passes the messages that are held until by or earlier to to. High priorities go first.
func (l *dueList) release(by int64, to func(*delivery)) {
	n := l.until(by)
	due := slices.Clone((*l)[:n])
	clear((*l)[:n])
	*l = (*l)[n:]
	slices.SortStableFunc(due, func(a, b *delivery) int { return cmp.Compare(b.Priority, a.Priority) })
	for _, d := range due {
		to(d)
	}
}
