package redis

import (
	"errors"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
)

// What was not given back before Close is not tried again for as long as a lease lasts. A lease ends by itself.
func TestNothingIsSentAgainAfterClose(t *testing.T) {
	for err, want := range map[error]bool{ErrClosed: false, errors.New("the answer was lost"): true} {
		c := &batch.Call{Op: decision.Op{Kind: decision.Cancel, Lease: decision.Lease{ID: 1}}}
		if fail([]*batch.Call{c}, err); c.Again != want {
			t.Errorf("after %v: sent again %v, want %v", err, c.Again, want)
		}
	}
}
