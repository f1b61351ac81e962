package lab

// events are the planned events: a heap by time. Events of the same millisecond happen in the order in which they were
// planned. But operations end first, so that a token that comes back can be taken at once.
type events struct {
	heap    []event
	planned uint64

	renewals int // of leases, so far
}

type event struct {
	at    int64 // ms since 1970
	order uint64
	do    func()
}

const afterEnds = 1 << 63 // in the order of all but ends

func (e *events) add(at int64, do func())    { e.push(at, afterEnds, do) }
func (e *events) addEnd(at int64, do func()) { e.push(at, 0, do) }

func (e *events) push(at int64, rank uint64, do func()) {
	e.planned++
	e.heap = append(e.heap, event{at, rank | e.planned, do})
	h := e.heap
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}

func (e *events) next() (event, bool) {
	h := e.heap
	if len(h) == 0 {
		return event{}, false
	}
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].before(&h[least]) {
				least = child
			}
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	e.heap = h
	return first, true
}

func (a *event) before(b *event) bool {
	return a.at < b.at || a.at == b.at && a.order < b.order
}
