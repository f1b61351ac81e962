// Package recall holds what a process remembers of a server: its entities, and its clock. A decision on remembered state
// takes one round trip. The server refuses it if the state or the time is another.
package recall

import (
	"strings"
	"sync"
	"time"
)

// Memory is the remembered entities. It is bounded: when it is full, a new record replaces an arbitrary one. Make one with
// New. It is safe for concurrent use.
type Memory[T any] struct {
	mu      sync.Mutex
	records map[string]*T
	most    int
}

// New returns a Memory of that many records at most.
func New[T any](most int) *Memory[T] {
	return &Memory[T]{records: map[string]*T{}, most: most}
}

// Get returns the record of a key; nil if there is none.
func (m *Memory[T]) Get(key string) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[key]
}

// Take is Get, and forgets the record: the caller alone has it. The key stays, since the record mostly comes back.
func (m *Memory[T]) Take(key string) *T {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[key]
	if r != nil {
		m.records[key] = nil
	}
	return r
}

// longestKey is the most bytes of a key that is remembered. Messages choose the keys, and could fill the memory of the process
// with long ones.
const longestKey = 1 << 10

// Put remembers a record, unless its key is too long. With nil it forgets the key.
func (m *Memory[T]) Put(key string, r *T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := m.records[key]; there && r != nil {
		m.records[key] = r
		return
	}
	delete(m.records, key)
	if r == nil || len(key) > longestKey {
		return
	}
	if len(m.records) >= m.most {
		for any := range m.records {
			delete(m.records, any)
			break
		}
	}
	m.records[strings.Clone(key)] = r // it may be a part of a message
}

// Clock estimates the server's clock: it shows the least time that the server's clock can show. So it is behind by the
// duration of the quickest answer, and ahead only if the server's clock is slower or was set back. The server then
// refuses a decision by this clock, and the clock takes the next time that the server tells. It is safe for concurrent
// use.
type Clock struct {
	started time.Time // readings are since then, so setting the clock of this machine changes nothing

	mu     sync.Mutex
	known  bool
	behind int64 // the server's time less the reading, in microseconds
}

// NewClock returns a Clock that knows no time yet.
func NewClock() *Clock { return &Clock{started: time.Now()} }

// Reading returns the time since NewClock by the clock of this process, in microseconds.
func (c *Clock) Reading() int64 { return time.Since(c.started).Microseconds() }

// Now returns the time in milliseconds. known is false before the first answer of the server.
func (c *Clock) Now() (ms int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.Reading() + c.behind) / 1000, c.known
}

// Heard records a time of the server's clock, in microseconds. doubt says that the estimate before may be wrong.
func (c *Clock) Heard(micros int64, doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if least := micros - c.Reading() - 1; !c.known || doubt || least > c.behind {
		c.known, c.behind = true, least
	}
}
