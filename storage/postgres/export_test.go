package postgres

import "time"

// StandStill makes the storage's clock show what it was told last.
func (s *Storage) StandStill() {
	s.clock.started = time.Unix(1<<40, 0) // the time since then is as short as a Duration can be
}

// Waiting is how many entities have calls that are not sent yet.
func (s *Storage) Waiting() int {
	s.lane.mu.Lock()
	defer s.lane.mu.Unlock()
	return len(s.lane.ready)
}
