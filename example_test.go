package drip_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drip-go/drip"
)

// Three operations a second, five at once: what is too much for one interval is spread over the next.
func Example() {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	bucket, err := drip.New(drip.Options{Size: 5, RefreshRate: 3, Start: now.Add(-time.Hour)})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 12 {
		delay, err := bucket.GetDelayAt(ctx, "shop-1", now) // GetDelay does it by the clock
		if err != nil {
			fmt.Println(err)
			return
		}
		if delay > 0 {
			fmt.Printf("%2d: postpone by %v\n", i, delay)
			continue
		}
		fmt.Printf("%2d: run\n", i)
		if err := bucket.ReturnToken(ctx, "shop-1"); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	//  0: run
	//  1: run
	//  2: run
	//  3: run
	//  4: run
	//  5: postpone by 1s
	//  6: postpone by 1s
	//  7: postpone by 1s
	//  8: postpone by 2s
	//  9: postpone by 2s
	// 10: postpone by 2s
	// 11: postpone by 3s
}

// What a message handler does with a bucket.
func ExampleBucket_GetDelay() {
	call := func(context.Context) error { fmt.Println("called"); return nil }
	postpone := func(by time.Duration) error { fmt.Println("postponed by", by); return nil }
	bucket, err := drip.New(drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 24 * time.Hour, Start: time.Unix(0, 0)})
	if err != nil {
		fmt.Println(err)
		return
	}

	handle := func(ctx context.Context, shop string) error {
		delay, err := bucket.GetDelay(ctx, shop)
		if err != nil {
			return err
		}
		if delay > 0 {
			return postpone(delay)
		}
		defer bucket.ReturnToken(context.WithoutCancel(ctx), shop)
		return call(ctx)
	}

	if err := handle(context.Background(), "shop-1"); err != nil {
		fmt.Println(err)
	}
	// Output: called
}
