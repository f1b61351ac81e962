package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Report is the outcome of a scenario.
type Report struct {
	Scenario Scenario
	Seed     uint64

	// Binding is the limit of the Options that binds most: the optimum uses the largest part of it.
	Binding string

	// Uncounted is whether there is no provider, so that OverLimit of the Results says nothing.
	Uncounted bool

	// Results has a result for each policy; the optimum is the last one.
	Results []Result
}

// Result is the outcome of one policy. Unless a field says otherwise, it counts each message once, even if it was
// delivered twice.
type Result struct {
	Policy string

	// Messages is how many messages arrived, Done how many were handled, and Lost how many were lost on the way. The
	// rest was still there when the run was given up.
	Messages, Done, Lost int

	// GaveUp is the number of events after which the run was given up; 0 if it was not.
	GaveUp int

	// Redeliveries of a message are its trips through the broker because it was postponed.
	Redeliveries Redeliveries

	// HeldAsks is the mean number of times that a consumer asked for a message it held.
	HeldAsks float64

	// Utilisation is the part of the binding limit that was used, from the first arrival to the last start; of a limit
	// of operations at once, to the last end.
	Utilisation float64

	// Makespan is the time from the first arrival to the end of the last operation.
	Makespan time.Duration

	// Wait is the time from the arrival of a message to the first start of its operation.
	Wait Wait

	// Overtaken is how many messages started later than one of the same entity that arrived an interval later, or more
	// than that. The interval is Options.RefreshInterval.
	Overtaken int

	// OverLimit is the number of calls that a provider found to be over its limit. It does them all the same.
	OverLimit int

	arrivals, ends []int64  // in order, ms since 1970
	waits          []waited // in order of at
}

// waited is the wait of the message that started at a time, in ms.
type waited struct{ at, wait int64 }

// Redeliveries a message.
type Redeliveries struct {
	Mean     float64
	P99, Max int
}

// Wait of a message.
type Wait struct{ Mean, P99, Max time.Duration }

func (r *run) result(policy string, utilisation float64) Result {
	res := Result{
		Policy:      policy,
		Messages:    len(r.messages),
		Lost:        r.lost,
		GaveUp:      r.gaveUp,
		Utilisation: utilisation,
		Overtaken:   r.overtaken(),
		OverLimit:   r.overLimit,
	}
	if len(r.messages) == 0 {
		return res
	}
	res.Makespan = milliseconds(max(0, r.lastEnd-r.messages[0].arrival))
	var trips []int64
	for i := range r.messages {
		m := &r.messages[i]
		trips = append(trips, int64(m.trips))
		res.HeldAsks += float64(m.heldAsks) / float64(len(r.messages))
		res.arrivals = append(res.arrivals, m.arrival)
		if m.ended > 0 {
			res.ends = append(res.ends, m.ended)
		}
		if m.started > 0 {
			res.waits = append(res.waits, waited{m.started, m.started - m.arrival})
		}
	}
	res.sum(trips)
	return res
}

// sum sets what follows from the ends and waits, and from the trips of the messages.
func (r *Result) sum(trips []int64) {
	slices.Sort(r.ends)
	slices.SortFunc(r.waits, func(a, b waited) int { return cmp.Compare(a.at, b.at) })
	r.Done = len(r.ends)
	mean, p99, most := spread(trips)
	r.Redeliveries = Redeliveries{mean, int(p99), int(most)}
	var waits []int64
	for _, w := range r.waits {
		waits = append(waits, w.wait)
	}
	mean, p99, most = spread(waits)
	r.Wait = Wait{time.Duration(mean * float64(time.Millisecond)), milliseconds(p99), milliseconds(most)}
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// spread is the mean, the value that 99 % do not exceed, and the largest.
func spread(values []int64) (mean float64, p99, most int64) {
	if len(values) == 0 {
		return 0, 0, 0
	}
	slices.Sort(values)
	var sum float64
	for _, v := range values {
		sum += float64(v)
	}
	n := len(values)
	return sum / float64(n), values[int(math.Ceil(0.99*float64(n)))-1], values[n-1]
}

// binding is a limit: a window, or behind the last of them the operations at once.
type binding struct {
	limit
	window int
	shared string // the name of the shared limit that it is, if any
}

func (b binding) String() string {
	if b.shared != "" {
		return b.shared + ": " + binding{limit: b.limit, window: b.window}.String()
	}
	if b.window == len(b.windows) {
		return fmt.Sprintf("%d at once", b.concurrency)
	}
	w := b.windows[b.window]
	what, when := fmt.Sprint(w.rate), fmt.Sprint("every ", milliseconds(w.interval))
	if w.unit != "" {
		what += " " + w.unit
	}
	if w.calendar != nil {
		when = w.calendar.by
	}
	return what + " " + when
}

// binding is the binding limit of the optimum.
func (r *run) binding() binding {
	b := binding{limit: r.eras[0].limit}
	for i := range len(b.windows) + 1 {
		if r.utilisation(i) > r.utilisation(b.window) {
			b.window = i
		}
	}
	return b
}

func (r *run) utilisation(window int) float64 {
	if len(r.messages) == 0 {
		return 0
	}
	used, last := float64(r.tokenTime), r.lastEnd
	if windows := r.eras[0].windows; window < len(windows) {
		used, last = float64(r.used[windows[window].unit]), r.lastStart
	}
	most := float64(len(r.providers)) * allowed(r.eras, window, r.messages[0].arrival, last)
	if most == 0 {
		return 0
	}
	return used / most
}

func (r *run) overtaken() (n int) {
	byEntity := make([][]*message, len(r.providers))
	for i := range r.messages {
		m := &r.messages[i]
		if m.started > 0 || !m.lost {
			byEntity[m.Entity] = append(byEntity[m.Entity], m)
		}
	}
	interval := r.eras[0].windows[0].interval
	for _, messages := range byEntity {
		n += overtaken(messages, interval)
	}
	return n
}

// overtaken is how many messages of one entity, in order of arrival, started after one that arrived an interval later.
func overtaken(messages []*message, interval int64) (n int) {
	// first[i] is when the first of the i-th message and all after it starts.
	first := make([]int64, len(messages)+1)
	first[len(messages)] = math.MaxInt64
	for i := len(messages) - 1; i >= 0; i-- {
		first[i] = min(first[i+1], messages[i].start())
	}
	for _, m := range messages {
		later, _ := slices.BinarySearchFunc(messages, m.arrival+interval, func(m *message, ms int64) int {
			return cmp.Compare(m.arrival, ms)
		})
		if first[later] < m.start() {
			n++
		}
	}
	return n
}

// start is when a message started, or is going to.
func (m *message) start() int64 {
	if m.started == 0 {
		return math.MaxInt64
	}
	return m.started
}
