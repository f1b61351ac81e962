package limiter

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The tail answers what a look at all requests does, whichever come, come back and leave.
func TestOvertaken(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	short := 0 // answers without a look at any request
	for range 2000 {
		l := &Limiter{duration: time.Second}
		kinds := 1 + r.IntN(4)
		patience := func() time.Duration {
			return time.Duration(1+r.IntN(kinds))*time.Second + time.Duration(r.IntN(100))*time.Millisecond
		}
		for range 100 {
			l.enqueue(&request{arrived: time.Now(), patience: patience()})
			if q := l.queue[r.IntN(len(l.queue))]; r.IntN(3) == 0 && !q.gone {
				q.gone = true
				l.vacate(q)
				if r.IntN(5) == 0 {
					l.tidy()
				}
			}
			p, place := patience(), r.Int64N(l.places+1)
			want := slices.ContainsFunc(l.queue, func(q *request) bool { return q.place > place && !q.gone && !alike(q.patience, p) })
			if got := l.overtaken(place, p); got != want {
				t.Fatalf("overtaken is %v, want %v", got, want)
			}
			queue := l.queue
			l.queue = []*request{{place: l.places + 1, patience: -1}}
			if !l.overtaken(place, p) {
				short++
			}
			l.queue = queue
		}
	}
	if short < 10_000 {
		t.Errorf("only %d answers took no look at the requests", short)
	}
}
