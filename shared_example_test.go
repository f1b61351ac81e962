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
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	big := map[string]bool{"shop-1": true}
	bucket, err := drip.New(drip.Options{
		Size: 40, RefreshRate: 2, // each shop
		Shared: map[string]drip.Limit{
			"app":    {Size: 50},                // 50 a second over all shops
			"export": {Size: 1, Concurrency: 1}, // an endpoint: one a second, one at once
		},
		Weight: func(shop string) int {
			if big[shop] {
				return 4
			}
			return 1
		},
		Start: now.Add(-time.Hour),
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
