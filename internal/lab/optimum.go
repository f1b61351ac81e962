package lab

import "slices"

// optimum is when each message of one entity, in order of arrival, would start at best: as soon as the limit allows
// after all messages before it. It knows the real costs of operations and their ends. Nothing is late and nothing
// fails. The limit, and the time from which and the time until which it is closed, are the only delays. It leaves out
// the starts that are later than longestRun after the first arrival.
func optimum(messages []*message, eras []era, closed [2]int64) (starts []int64) {
	if len(messages) == 0 {
		return nil
	}
	now := messages[0].arrival
	n := eraAt(eras, now)
	limit := eras[n].limit
	capacity := make([]int64, len(limit.windows))
	for i, w := range limit.windows {
		capacity[i] = w.size
	}
	var ends []int64 // of the operations under way, in order

	advance := func(to int64) {
		for {
			until := to
			if n+1 < len(eras) {
				until = min(to, eras[n+1].from)
			}
			for i, w := range limit.windows {
				capacity[i] = min(w.size, capacity[i]+w.rate*min(w.refreshes(now, until), (w.size-capacity[i])/w.rate+1))
			}
			now = until
			if n+1 == len(eras) || now < eras[n+1].from {
				break
			}
			n++
			limit = eras[n].limit
			for i, w := range limit.windows {
				capacity[i] = min(w.size, capacity[i])
			}
		}
		for len(ends) > 0 && ends[0] <= now {
			ends = ends[1:]
		}
	}
	// later is a time before which the message can't start, or now.
	later := func(m *message) int64 {
		if closed[0] <= now && now < closed[1] {
			return closed[1]
		}
		t := now
		if over := int64(len(ends)) - limit.concurrency; over >= 0 {
			t = ends[over]
		}
		for i, w := range limit.windows {
			if missing := min(int64(m.costs.in(w.unit).actual), w.size) - capacity[i]; missing > 0 {
				t = max(t, w.gains(missing, now))
			}
		}
		if n+1 < len(eras) {
			t = min(t, eras[n+1].from)
		}
		return t
	}

	for _, m := range messages {
		advance(max(now, m.arrival))
		for {
			t := later(m)
			if t == now {
				break
			}
			if t > messages[0].arrival+longestRun.Milliseconds() {
				return starts
			}
			advance(t)
		}
		for i, w := range limit.windows {
			capacity[i] -= int64(m.costs.in(w.unit).actual)
		}
		starts = append(starts, now)
		end := now + m.travel + m.operation
		i, _ := slices.BinarySearch(ends, end)
		ends = slices.Insert(ends, i, end)
	}
	return starts
}
