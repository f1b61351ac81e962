package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drip-go/drip/limiter"
	"github.com/drip-go/drip/storage/memory"
)

// Ten units a second. An operation waits for what the ones before it have used, not for its own units: the third one takes the
// units of an hour at once.
func Example() {
	ctx := context.Background()
	l, err := limiter.New(limiter.Options{Limit: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	began := time.Now()
	for _, units := range []float64{10, 10, 36_000} {
		if _, err := l.Consume(ctx, units); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("waited two seconds:", time.Since(began) >= 2*time.Second)
	_, err = l.ConsumeTimeout(ctx, 10, 10*time.Millisecond, false)
	fmt.Println(err, errors.Is(err, limiter.ErrTimeout))
	// Output:
	// waited two seconds: true
	// limiter: consume 10 units: timed out after 10ms true
}

// An operation whose units are known when it is over.
func ExampleLimiter_Do() {
	l, err := limiter.New(limiter.Options{Limit: 100})
	if err != nil {
		fmt.Println(err)
		return
	}
	query := func(context.Context) (rows int, units float64, err error) { return 42, 3.5, nil }

	var rows int
	err = l.Do(context.Background(), func(ctx context.Context) (units float64, err error) {
		rows, units, err = query(ctx)
		return units, err
	})
	fmt.Println(rows, err)
	// Output: 42 <nil>
}

// An operation that can wait for later, or be left out, takes units only if there are some.
func ExampleLimiter_TryConsume() {
	ctx := context.Background()
	l, err := limiter.New(limiter.Options{Limit: 0.001})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		ok, err := l.TryConsume(ctx, 1)
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// An operation that waits for so long at most.
func ExampleLimiter_ConsumeTimeout() {
	ctx := context.Background()
	l, err := limiter.New(limiter.Options{Limit: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := l.ConsumeNow(ctx, 100); err != nil { // whatever is owed
		fmt.Println(err)
		return
	}
	_, err = l.ConsumeTimeout(ctx, 1, 10*time.Millisecond, false)
	fmt.Println(errors.Is(err, limiter.ErrTimeout))
	// Output: true
}

// The limit changes while operations wait, and the provider's refusal drops the saved units.
func ExampleLimiter_SetLimit() {
	l, err := limiter.New(limiter.Options{Limit: 10, Percent: 50})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = l.SetLimit(20)
	fmt.Println(l.Limit(), err)
	err = l.Throttled(context.Background())
	fmt.Println(err)
	// Output:
	// 10 <nil>
	// <nil>
}

// One limiter for all processes that use the storage.
func ExampleOptions_storage() {
	ctx := context.Background()
	s := memory.New() // in production one that processes share, such as storage/redis
	for range 2 {
		l, err := limiter.New(limiter.Options{Limit: 0.001, Storage: s, Key: "table-1"})
		if err != nil {
			fmt.Println(err)
			return
		}
		ok, err := l.TryConsume(ctx, 1)
		fmt.Println(ok, err)
	}
	// Output:
	// true <nil>
	// false <nil>
}
