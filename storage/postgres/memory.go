package postgres

import (
	"sync"
	"time"
)

// memory is the rows that this process remembers. It is bounded: when it is full, a new record replaces an arbitrary
// one.
type memory struct {
	mu      sync.Mutex
	records map[string]*record
	most    int
}

func (m *memory) get(key string) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[key]
}

// put remembers a record. If r is nil or its row is not stored, put forgets the key.
func (m *memory) put(key string, r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, key)
	if r == nil || r.revision == 0 {
		return
	}
	if len(m.records) >= m.most {
		for any := range m.records {
			delete(m.records, any)
			break
		}
	}
	m.records[key] = r
}

// clock estimates the server's clock: it is the least time that the server's clock can show. So it is behind by the
// duration of the quickest answer, and ahead only if the server's clock is slower or was set back. The server then
// refuses a decision by this clock, and the clock takes the next time that the server tells.
type clock struct {
	started time.Time // readings are since then, so setting the clock of this machine changes nothing

	mu     sync.Mutex
	known  bool
	behind int64 // the server's time less the reading, in microseconds
}

// reading returns the time of the clock of this process, in microseconds.
func (c *clock) reading() int64 { return time.Since(c.started).Microseconds() }

// now returns the time in milliseconds. known is false before the first answer of the server.
func (c *clock) now() (ms int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.reading() + c.behind) / 1000, c.known
}

// heard records a time of the server's clock. doubt says that the estimate before may be wrong.
func (c *clock) heard(micros int64, doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if least := micros - c.reading() - 1; !c.known || doubt || least > c.behind {
		c.known, c.behind = true, least
	}
}
