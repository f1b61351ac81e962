package drip_test

import (
	"errors"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// Before 1970 each entity was closed until then, and tickets could not be read.
func TestTimesBefore1970(t *testing.T) {
	now := time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC)
	b := buckettest.New(t, drip.Options{Size: 1, Start: now.Add(-time.Hour)})
	a, err := b.Admit(t.Context(), "shop", drip.Request{Now: now})
	if errors.Is(err, drip.ErrTime) {
		return
	}
	if a.Delay > time.Second || err != nil {
		t.Errorf("a newcomer waits %v for %v, %v", a.Delay, a.Bound, err)
	}
	if got, err := drip.ParseTicket(a.Ticket.String()); err != nil || got != a.Ticket {
		t.Errorf("ParseTicket of %q: %v", a.Ticket, err)
	}
}
