package postgres

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
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
