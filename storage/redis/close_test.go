package redis

import (
	"errors"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
)

// After Close no try to give back a lease is made again. A lease ends by itself.
func TestNothingIsSentAgainAfterClose(t *testing.T) {
	for err, want := range map[error]bool{ErrClosed: false, errors.New("the answer was lost"): true} {
		c := &batch.Call{Op: decision.Op{Kind: decision.Cancel, Lease: decision.Lease{ID: 1}}}
		if fail([]*batch.Call{c}, err); c.Again != want {
			t.Errorf("after %v: sent again %v, want %v", err, c.Again, want)
		}
	}
}
