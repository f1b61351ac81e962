package drip_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drip-go/drip"
)

// Each shop has a limit, an endpoint has one, and the app has one over all shops.
func ExampleOptions_shared() {
	ctx := context.Background()
	now := time.Now().Truncate(time.Second).Add(time.Minute) // when the memory storage, which begins empty, is full
	big := map[string]bool{"shop-1": true}
	bucket, err := drip.New(drip.Options{
		Size: 38, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond, // each shop: a bucket of 40 that drains by 2 a second
		Shared: map[string]drip.Limit{
			"app":    {Size: 50},                // over all shops: at most 50 start in a second
			"export": {Size: 1, Concurrency: 1}, // an endpoint: one a second, one at once
		},
		Weight: func(shop string) int {
			if big[shop] {
				return 4
			}
			return 1
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		a, err := bucket.Admit(ctx, "shop-1", drip.Request{
			Within:   []string{"app"}, // not the endpoint
			Urgent:   true,
			Deadline: now.Add(time.Minute),
			Now:      now,
		})
		if err != nil {
			fmt.Println(err) // drip.ErrDeadline: it cannot run in time
			return
		}
		fmt.Println(a.Delay, a.Bound)
	}
	a, err := bucket.Admit(ctx, "shop-2", drip.Request{Now: now}) // within all of them
	fmt.Println(a.Delay, a.Bound, err)
	a, err = bucket.Admit(ctx, "shop-3", drip.Request{Now: now})
	fmt.Println(a.Delay, a.Bound, a.Limit, err)
	// Output:
	// 0s nothing
	// 0s nothing
	// 0s nothing
	// 0s nothing <nil>
	// 1s window 1 export <nil>
}
