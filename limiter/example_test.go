package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drip-go/drip/limiter"
)

// Ten units a second. The second operation waits for what the first one has used, not for its own units.
func Example() {
	ctx := context.Background()
	l, err := limiter.New(limiter.Options{Limit: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		waited, err := l.Consume(ctx, 10)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("waited about", waited.Round(time.Second))
	}
	_, err = l.ConsumeTimeout(ctx, 10, 10*time.Millisecond, false)
	fmt.Println(err, errors.Is(err, limiter.ErrTimeout))
	// Output:
	// waited about 0s
	// waited about 1s
	// waited about 1s
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
