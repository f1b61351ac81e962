package lab

import (
	"testing"
	"time"
)

// call is a call that begins, or with a minus the end of the one that began at that time.
type call struct {
	ms     int64
	cost   int
	within bool

	end    bool
	began  int64
	actual int
}

func begin(ms int64, cost int, within bool) call { return call{ms: ms, cost: cost, within: within} }
func end(began, ms int64, estimate, actual int) call {
	return call{ms: ms, cost: estimate, end: true, began: began, actual: actual}
}

func TestProviders(t *testing.T) {
	for name, c := range map[string]struct {
		provider Provider
		calls    []call
	}{
		"leaky bucket": {LeakyBucket(3, 2), []call{
			begin(1000, 1, true), begin(1000, 2, true), // 3 of 3
			begin(1499, 1, false), // 2.002
			begin(1500, 1, true),  // 2, then 3
			begin(1999, 1, false),
			begin(2000, 1, true),
			begin(9000, 4, false), // never fits
			begin(9000, 3, true),
		}},
		"leaky bucket settles": {LeakyBucket(10, 1), []call{
			begin(1000, 10, true),
			end(1000, 3000, 10, 6), // 8, then 4
			begin(3000, 7, false),
			begin(3000, 6, true),   // 10
			end(3000, 4000, 6, 9),  // 9, then 12
			begin(5999, 1, false),  // 10.001
			begin(7000, 1, true),   // 9, then 10
			end(7000, 10000, 1, 0), // 7, then 6
			begin(10000, 4, true),
			end(10000, 60000, 4, 0), // empty stays empty
			begin(60000, 11, false),
			begin(60000, 10, true),
		}},
		"token bucket": {TokenBucket(2, 0.5), []call{
			begin(1000, 1, true), begin(1000, 1, true), begin(1000, 1, false),
			begin(2999, 1, false),
			begin(3000, 1, true),
			begin(4999, 1, false),
			begin(99000, 2, true), begin(99000, 1, false), // no more than 2
		}},
		"token bucket settles": {TokenBucket(10, 1), []call{
			begin(1000, 8, true),   // 2 left
			end(1000, 2000, 8, 13), // 3, then -2
			begin(4999, 1, false),  // 0.999
			begin(5000, 1, true),   // 1
			end(5000, 9000, 1, 0),  // 4, then 5
			begin(9000, 6, false), begin(9000, 5, true),
			end(9000, 15000, 5, 0), // 6, then 10 and not 11
			begin(15000, 11, false), begin(15000, 10, true),
		}},
		"fixed window": {FixedWindow(2, time.Minute), []call{
			begin(1000, 1, true), begin(59999, 1, true), begin(59999, 1, false),
			begin(60000, 2, true), begin(119999, 1, false),
			begin(180000, 3, false), begin(180000, 2, true),
		}},
		"fixed window settles": {FixedWindow(10, time.Minute), []call{
			begin(1000, 10, true),
			end(1000, 2000, 10, 4), // 4 used
			begin(3000, 7, false), begin(3000, 6, true),
			end(3000, 61000, 6, 1), // too late to come back
			begin(61000, 10, true),
			end(61000, 121000, 10, 13), // 3 from the window it ends in
			begin(121000, 8, false), begin(121000, 7, true),
		}},
		"window from the first call": {FirstCallWindow(2, time.Minute), []call{
			begin(50000, 1, true), begin(60000, 1, true), begin(109999, 1, false),
			begin(110000, 1, true), // opens the next one
			begin(169999, 1, true), begin(169999, 1, false),
			begin(300000, 2, true), begin(359999, 1, false), begin(360000, 1, true),
		}},
		"window from the first call settles": {FirstCallWindow(10, time.Minute), []call{
			begin(50000, 10, true),
			end(50000, 51000, 10, 7), // 7 used
			begin(52000, 4, false), begin(52000, 3, true),
			end(52000, 120000, 3, 9), // that window is over, and no other was opened
			begin(120000, 10, true),
			end(120000, 121000, 10, 12), // 12 used
			begin(179999, 1, false), begin(180000, 1, true),
		}},
		"sliding window": {SlidingWindow(2, time.Minute), []call{
			begin(50000, 1, true), begin(60000, 1, true), begin(109999, 1, false),
			begin(110000, 1, true), // the first one is a minute ago
			begin(119999, 1, false), begin(120000, 1, true), begin(169999, 1, false),
			begin(400000, 3, false), begin(400000, 2, true),
		}},
		"sliding window settles": {SlidingWindow(10, time.Minute), []call{
			begin(1000, 8, true),
			end(1000, 2000, 8, 5), // 5 used
			begin(3000, 6, false), begin(3000, 5, true),
			end(3000, 31000, 5, 7),   // 2 more, at 31000
			begin(60999, 1, false),   // 12
			begin(61000, 3, true),    // 5 of them have gone
			begin(62999, 1, false),   // 10
			begin(63000, 5, true),    // 5 more have gone
			end(1000, 64000, 8, 5),   // long forgotten
			begin(90999, 1, false),   // 2 + 3 + 5
			begin(91000, 2, true),    // the 2 have gone
			begin(91000, 1, false),   // 10
			begin(500000, 11, false), // never fits
		}},
		"concurrency": {Concurrency(2), []call{
			begin(1000, 1, true), begin(1000, 5, true), begin(1000, 1, false),
			end(1000, 1000, 1, 1),
			begin(1000, 1, true), begin(99000, 1, false),
			end(1000, 99000, 5, 9), end(1000, 99000, 1, 1),
			begin(99000, 1, true), begin(99000, 1, true), begin(99000, 1, false),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, call := range c.calls {
				if call.end {
					c.provider.End(call.began, call.ms, call.cost, call.actual)
				} else if got := c.provider.Begin(call.ms, call.cost); got != call.within {
					t.Fatalf("call %d: Begin(%d, %d) = %v, want %v", i, call.ms, call.cost, got, call.within)
				}
			}
		})
	}
}

func TestTokenBucketChange(t *testing.T) {
	p := TokenBucket(10, 1).(*tokenBucket)
	p.Begin(1000, 6)       // 4 left
	p.change(3000, 20, 10) // 6
	if p.Begin(3000, 7) || !p.Begin(3100, 7) {
		t.Error("a raised limit has not the tokens it had, and 10 more a second")
	}
	p.change(9000, 5, 1)
	if p.Begin(9000, 6) || !p.Begin(9000, 5) {
		t.Error("a lowered limit keeps not as many tokens as it has room for")
	}
}
