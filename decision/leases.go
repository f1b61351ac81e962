package decision

// Leases are the leases of one entity that are out. A backend keeps them in its own way, beside the State. An
// implementation decides nothing: it counts, adds and removes.
type Leases interface {
	// Out is the number of leases whose end is after now.
	Out(now int64) int64
	// Hold adds a lease.
	Hold(id, end int64)
	// Release removes a lease. It reports whether it was there and its end is after now.
	Release(id, end, now int64) bool
	// Clear removes all leases.
	Clear()
}
