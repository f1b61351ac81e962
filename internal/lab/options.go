package lab

import (
	"time"

	"github.com/drip-go/drip"
)

// Options that never exceed a provider, whatever arrives, when requests are on their way for at most 50 ms. All follow
// from one fact: capacity comes at the beginnings of intervals. So a span of time in which k intervals begin admits at
// most Size + k·RefreshRate requests. The requests that arrive within D were sent within D + 50 ms. The number of
// intervals of length i that begin in it is (D + 50 ms) / i, rounded up.

// leaky40 is for a leaky bucket of 40 that drains by 2 a second.
//
// In D the bucket takes 40 + 2·D. If k intervals of 500 ms begin in D + 50 ms, D is above (k-1)·500 ms - 50 ms, so it
// takes more than 40 + (k-1) - 0.1. Size + k must not be more: Size is 38. The rate is all of the provider's.
var leaky40 = drip.Options{Size: 38, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond}

// leaky40BySecond is for the same bucket, with intervals of a second.
//
// It takes more than 40 + 2·(k-1) - 0.1 when k seconds begin. Size + 2·k must not be more: Size is 37.
var leaky40BySecond = drip.Options{Size: 37, RefreshRate: 2}

// leaky200 is for a leaky bucket of 200 that drains by 10 a second.
//
// As with leaky40 in intervals of 100 ms: more than 200 + (k-1) - 0.5, so Size is 198.
var leaky200 = drip.Options{Size: 198, RefreshRate: 1, RefreshInterval: 100 * time.Millisecond}

// tokens30 is for a token bucket of 30 that gains one every 2 seconds.
//
// Tokens that are not there are what fills a leaky bucket, so this is leaky40 with other numbers: more than 30 + (k-1) -
// 0.025 when k intervals of 2 seconds begin. Size is 28.
var tokens30 = drip.Options{Size: 28, RefreshRate: 1, RefreshInterval: 2 * time.Second}

// orders20 is for a token bucket of 20 that gains one a minute.
//
// More than 20 + (k-1) - 0.001 when k minutes begin: Size is 18.
var orders20 = drip.Options{Size: 18, RefreshRate: 1, RefreshInterval: time.Minute}

// minute60 is for 60 in each minute of the clock.
//
// In a minute 57 are admitted at most: it begins with no more than that, and gains nothing before it ends. Besides, those
// arrive in it that were sent at the end of the minute before and were still on their way. They hold a token each,
// so they are at most 3. A larger Concurrency costs as much of the rate.
var minute60 = drip.Options{Size: 57, RefreshRate: 57, RefreshInterval: time.Minute, Concurrency: 3}

// tenSeconds100 is for 100 in each aligned window of 10 seconds, as minute60: 5 may be on their way.
var tenSeconds100 = drip.Options{Size: 95, RefreshRate: 95, RefreshInterval: 10 * time.Second, Concurrency: 5}

// sliding100 is for 100 in any 10 seconds.
//
// The requests that count together arrived within less than 10 s, and were sent in less than 10,050 ms. At most 98
// intervals of 103 ms begin in that, and 2 + 98 is 100. The rate is 97 % of the provider's. With longer bursts it would
// be less.
var sliding100 = drip.Options{Size: 2, RefreshRate: 1, RefreshInterval: 103 * time.Millisecond, Concurrency: 10}

// firstCall300 is for 300 in windows of 5 minutes that begin with a call.
//
// A window is some span of 5 minutes, so it is enough that there are not more in any of them: of less than 300,050 ms
// at most 290 are beginnings of intervals of 1,035 ms, and 10 + 290 is 300. The rate is 97 % of the provider's.
var firstCall300 = drip.Options{Size: 10, RefreshRate: 1, RefreshInterval: 1035 * time.Millisecond}

// fiveAtOnce is for 5 calls at a time, and no other limit that matters.
//
// An operation holds a token from before the request is sent until its answer is there. So the provider never has more
// calls under way than tokens are out. That needs leases that last. Living consumers renew theirs. The request of a
// dead one ends before its lease of 30 seconds, because the operations here time out before that, or nobody dies. An
// operation is expected to take a second.
var fiveAtOnce = drip.Options{
	Size: 1000, RefreshRate: 1000, Concurrency: 5, WaitForToken: time.Second, Lease: 30 * time.Second,
}

// bucketAndMinute is for a leaky bucket of 40 that drains by 2 a second, 100 in each minute of the clock, and 5 calls at
// a time: leaky40, and beside it a window as in minute60 with 5 that may be on their way.
var bucketAndMinute = drip.Options{
	Size: 38, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond,
	Windows:     []drip.Window{{Size: 95, RefreshInterval: time.Minute}},
	Concurrency: 5,
}

// pointsAndMinute is for a leaky bucket of 200 points that drains by 20 a second, 1,000 points in each minute of the
// clock, and 5 calls at a time. The estimate of an operation is 1 to 10 points, and its real cost up to 3 more or less.
//
// The provider and drip charge a difference when an operation ends. A request that was on its way just then was sent
// before the difference was known: up to 3 points of each of the 4 others in flight. So the bucket must have room for
// 12 more than with leaky40: with intervals of 50 ms it takes more than 200 + (k-1) - 1 when k begin, and Size is 198 -
// 12. Besides its own requests, a minute gets the requests still on their way from the minute before, at most 5 of 10
// points, and the 12: 938 are left. Points that come back to drip come back to the provider at the same time, and drip
// takes them only as far as the bucket would have it.
var pointsAndMinute = drip.Options{
	Size: 186, RefreshRate: 1, RefreshInterval: 50 * time.Millisecond,
	Windows:     []drip.Window{{Size: 938, RefreshInterval: time.Minute}},
	Concurrency: 5,
}

// fiveAtOnceGuessed10 is fiveAtOnce, but an operation is expected to take ten seconds.
var fiveAtOnceGuessed10 = drip.Options{
	Size: 1000, RefreshRate: 1000, Concurrency: 5, WaitForToken: 10 * time.Second, Lease: 30 * time.Second,
}

// points2000 is for a leaky bucket of 2,000 points that drains by 100 a second, and requests that are not on their way.
//
// As with leaky40 in intervals of 100 ms: at least 2000 + 10·(k-1) when k begin, so Size is 1990.
var points2000 = drip.Options{Size: 1990, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond, Concurrency: 1000}
