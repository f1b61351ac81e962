package postgres

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// deadlines are contexts that end when a time is over, or up to an eighth of it before: what begins at about the same time
// has one in common, for to make one takes longer than to decide.
type deadlines struct {
	after time.Duration

	mu   sync.Mutex
	last *deadline
	made time.Time
}

func (d *deadlines) context() *deadline {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); d.last == nil || now.Sub(d.made) > d.after/8 {
		ctx, cancel := context.WithTimeout(context.Background(), d.after)
		made := &deadline{Context: ctx}
		context.AfterFunc(ctx, func() {
			cancel()
			made.interrupt()
		})
		d.last, d.made = made, now
	}
	return d.last
}

// deadline is a context that many have in common, with the connections that something is under way on. If each of these
// had a deadline set and cleared for each statement, that would be two timers a statement, which wake threads.
type deadline struct {
	context.Context

	mu          sync.Mutex
	connections []*pgconn.PgConn
}

// begin has what is done on a connection from now on fail when the time is over. The caller must call end when it is done.
func (d *deadline) begin(c *pgconn.PgConn) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	d.connections = append(d.connections, c)
	return nil
}

// end leaves the connection as it was. One that pgconn is closing has a deadline for that.
func (d *deadline) end(c *pgconn.PgConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.Index(d.connections, c)
	d.connections = slices.Delete(d.connections, i, i+1)
	if d.Err() != nil && !c.IsClosed() {
		_ = c.Conn().SetDeadline(time.Time{}) // if it fails there is none
	}
}

// interrupt is for when the time is over.
func (d *deadline) interrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.connections {
		if c.Conn().SetDeadline(time.Unix(1, 0)) != nil {
			_ = c.Conn().Close() // a tunnel may have no deadlines
		}
	}
}
