package postgres

import (
	"sync"
	"time"
)

// memory is what this process knows of rows. It is bounded: a new record takes the place of any other.
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

// put remembers a record. Nil, or a row that is not there, is forgotten.
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

// clock is the server's clock as far as it is known here: the time that it must have shown at least. So it is behind by the
// time that the quickest answer took, and ahead only if the server's clock is slower or was set back. What is decided by it
// is refused then, and the next time that is heard counts.
type clock struct {
	started time.Time // readings are since then, so setting the clock of this machine changes nothing

	mu     sync.Mutex
	known  bool
	behind int64 // the server's time less the reading, in microseconds
}

// reading is the time of the clock of this process, in microseconds.
func (c *clock) reading() int64 { return time.Since(c.started).Microseconds() }

// now is in milliseconds.
func (c *clock) now() (ms int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return (c.reading() + c.behind) / 1000, c.known
}

// heard takes in that the server's clock has shown a time. doubt says that the time known before may be wrong.
func (c *clock) heard(micros int64, doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if least := micros - c.reading() - 1; !c.known || doubt || least > c.behind {
		c.known, c.behind = true, least
	}
}
