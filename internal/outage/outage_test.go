package outage

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// refused is the error of a connection from a port.
func refused(port int, cause error) error {
	err := &net.OpError{Op: "read", Net: "tcp", Source: &net.TCPAddr{Port: port}, Err: os.NewSyscallError("read", cause)}
	return fmt.Errorf("admit %q: %w", "shop", fmt.Errorf("%w: %w", errors.New("no answer"), err))
}

// broken is an error whose methods panic, as the method of a nil pointer of the user's.
type broken struct{ error }

// An outage is told once for each of its causes, whatever the texts around them are, and a later one again.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outage
		fails := func(want bool, err error) {
			t.Helper()
			if got := o.Fails(err); got != want {
				t.Errorf("Fails(%T) = %v after %v", err, got, time.Since(o.failed))
			}
		}
		works := func(want bool) {
			t.Helper()
			if got := o.Works(); got != want {
				t.Errorf("Works = %v after %v", got, time.Since(o.failed))
			}
		}
		works(false)
		fails(true, refused(1, syscall.ECONNREFUSED))
		fails(false, refused(2, syscall.ECONNREFUSED))
		fails(true, refused(3, syscall.ECONNRESET))
		fails(false, refused(4, syscall.ECONNREFUSED))
		works(false) // for another entity
		time.Sleep(over + 1)
		works(true)
		works(false)
		fails(true, refused(5, syscall.ECONNREFUSED))
		time.Sleep(another)
		fails(false, refused(6, syscall.ECONNREFUSED))
		time.Sleep(another + 1)
		fails(true, refused(7, syscall.ECONNREFUSED)) // nobody has asked meanwhile
		fails(true, broken{})
		n := 0
		for i := range 100 {
			if o.Fails(fmt.Errorf("try %d", i)) {
				n++
			}
		}
		if n != mostTold-2 {
			t.Errorf("%d more causes were told, want %d", n, mostTold-2)
		}
	})
}
