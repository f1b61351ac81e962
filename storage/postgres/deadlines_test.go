package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Whenever it is asked for, a context lasts for the time or up to an eighth less, and is then over.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 800 * time.Millisecond
		d := deadlines{after: after}
		made := map[context.Context]bool{}
		for range 200 {
			began, ctx := time.Now(), d.context()
			made[ctx] = true
			if deadline, ok := ctx.Deadline(); ctx.Err() != nil || !ok || deadline.Sub(began) > after || deadline.Sub(began) < after*7/8 {
				t.Fatalf("a context lasts for %v, its error is %v", deadline.Sub(began), ctx.Err())
			}
			time.Sleep(after / 80)
		}
		if len(made) > 20 {
			t.Errorf("%d contexts were made in 2.5 times the time, want 9 for each", len(made))
		}
		time.Sleep(after)
		synctest.Wait()
		for ctx := range made {
			if ctx.Err() != context.DeadlineExceeded {
				t.Errorf("the error of a context that is over is %v", ctx.Err())
			}
		}
	})
}

// When the time is over, what is under way on a connection fails, and on no other. The connection is left as it was.
func TestInterrupt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const after = 800 * time.Millisecond
		d := deadlines{after: after}
		began, ctx := time.Now(), d.context()
		connect := func(wrap func(net.Conn) net.Conn) (c *pgconn.PgConn, server net.Conn) {
			config, err := pgconn.ParseConfig("host=localhost")
			if err != nil {
				t.Fatal(err)
			}
			near, server := net.Pipe()
			if c, err = pgconn.Construct(&pgconn.HijackedConn{Conn: wrap(near), Config: config}); err != nil {
				t.Fatal(err)
			}
			return c, server
		}
		begin := func(c *pgconn.PgConn) {
			if err := ctx.begin(c); err != nil {
				t.Fatal(err)
			}
		}
		plain := func(c net.Conn) net.Conn { return c }
		c, server := connect(plain)
		done, doneServer := connect(plain)
		tunneled, _ := connect(func(c net.Conn) net.Conn { return NoDeadlines{c} })
		begin(done)
		begin(c)
		begin(tunneled)
		ctx.end(done)

		b := make([]byte, 1)
		if _, err := c.Conn().Read(b); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != after {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, err := tunneled.Conn().Read(b); !errors.Is(err, io.ErrClosedPipe) || time.Since(began) != after {
			t.Errorf("without deadlines, after %v: %v", time.Since(began), err)
		}
		if err := ctx.begin(done); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("begin after the time is %v", err)
		}
		ctx.end(c)
		ctx.end(tunneled)
		for c, server := range map[*pgconn.PgConn]net.Conn{c: server, done: doneServer} {
			go server.Write([]byte{1})
			if _, err := c.Conn().Read(b); err != nil {
				t.Error(err)
			}
		}
		if len(ctx.connections) != 0 {
			t.Errorf("%d connections are left", len(ctx.connections))
		}
	})
}

// NoDeadlines is a connection such as that through a tunnel of an SSH client.
type NoDeadlines struct{ net.Conn }

func (NoDeadlines) SetDeadline(time.Time) error { return errors.New("deadlines are not supported") }
