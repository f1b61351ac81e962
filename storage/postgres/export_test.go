package postgres

// Waiting is the number of entities with calls that are not sent yet.
func (s *Storage) Waiting() int { return s.lane.Waiting() }
