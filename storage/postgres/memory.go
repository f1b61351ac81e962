package postgres

import (
	"sync"
	"time"
)

// memory is what is known of rows. It is bounded, for which it forgets some.
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

func (m *memory) put(key string, r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.records) >= m.most && m.records[key] == nil {
		for any := range m.records {
			delete(m.records, any)
			break
		}
	}
	m.records[key] = r
}

func (m *memory) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, key)
}

// clock is the server's as far as it is known here: what it must have shown at the least. So it is behind by no more than
// an answer took that was quick, and ahead only if the server's is slower or was set back. Then what is decided by
// it is refused, and what is heard next counts.
type clock struct {
	started time.Time // all readings are since then, so setting the clock of this machine changes nothing

	mu     sync.Mutex
	known  bool
	behind int64 // what the server's shows less what this one reads, in microseconds
}

// reading is what the clock of this process reads, in microseconds.
func (c *clock) reading() int64 { return time.Since(c.started).Microseconds() }

// now is in milliseconds.
func (c *clock) now() (ms int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return floor(c.reading()+c.behind, 1000), c.known
}

// heard takes in that the server's clock has shown a time. doubt says that what was known before may be wrong.
func (c *clock) heard(micros int64, doubt bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if least := micros - c.reading() - 1; !c.known || doubt || least > c.behind {
		c.known, c.behind = true, least
	}
}
