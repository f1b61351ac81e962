package postgres

import "time"

// StandStill stops the storage's clock at the last time that it heard.
func (s *Storage) StandStill() {
	s.clock.started = time.Unix(1<<40, 0) // the time since then is as short as a Duration can be
}

// Waiting is the number of entities with calls that are not sent yet.
func (s *Storage) Waiting() int { return s.lane.Waiting() }
