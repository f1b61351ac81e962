package drip_test

import (
	"context"
	"errors"
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

// A message handler that uses a bucket.
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

// A handler whose messages carry their ticket, and whose calls cost what the provider says afterwards.
func ExampleBucket_Admit() {
	call := func(context.Context) (cost int, err error) { fmt.Println("called"); return 2, nil }
	postpone := func(by time.Duration, t drip.Ticket) error { fmt.Println("postponed by", by); return nil }
	bucket, err := drip.New(drip.Options{
		Size: 4, RefreshRate: 4, RefreshInterval: 24 * time.Hour,
		Concurrency: 5, Start: time.Unix(0, 0),
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	handle := func(ctx context.Context, shop string, ticket drip.Ticket) error {
		a, err := bucket.Admit(ctx, shop, drip.Request{Ticket: ticket, Cost: 3})
		if err != nil {
			return err
		}
		if a.Delay > 0 {
			return postpone(a.Delay, a.Ticket) // it comes back with its ticket
		}
		cost, err := call(ctx)
		return errors.Join(err, bucket.Settle(context.WithoutCancel(ctx), shop, a.Lease, cost))
	}

	if err := handle(context.Background(), "shop-1", drip.Ticket{}); err != nil {
		fmt.Println(err)
	}
	// Output: called
}

// A caller that may wait, such as the handler of an HTTP request, sleeps instead of postponing. If it leaves, others get its
// slot.
func ExampleBucket_Admit_wait() {
	bucket, err := drip.New(drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 20 * time.Millisecond, Start: time.Unix(0, 0)})
	if err != nil {
		fmt.Println(err)
		return
	}

	wait := func(ctx context.Context, shop string, r drip.Request) (drip.Lease, error) {
		for {
			a, err := bucket.Admit(ctx, shop, r)
			if err != nil || a.Delay == 0 {
				return a.Lease, err
			}
			select {
			case <-time.After(a.Delay):
				r.Ticket = a.Ticket
			case <-ctx.Done():
				_ = bucket.Cancel(context.WithoutCancel(ctx), shop, a) // after an error the slot stays unused
				return drip.Lease{}, ctx.Err()
			}
		}
	}

	for range 2 {
		lease, err := wait(context.Background(), "shop-1", drip.Request{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("a call") // with a context that ends before the lease
		fmt.Println(bucket.Settle(context.Background(), "shop-1", lease, lease.Cost()))
	}
	// Output:
	// a call
	// <nil>
	// a call
	// <nil>
}

// An accounting API that allows each tenant 5 calls at a time, 60 a minute and 5,000 a day.
func ExampleBucket_Inspect() {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	bucket, err := drip.New(drip.Options{
		Size: 60, RefreshRate: 60, RefreshInterval: time.Minute,
		Windows:     []drip.Window{{Size: 5000, RefreshInterval: 24 * time.Hour}},
		Concurrency: 5,
		Start:       time.Unix(0, 0),
		Clock:       func() time.Time { return now },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 5 {
		if _, err := bucket.Admit(ctx, "tenant-1", drip.Request{}); err != nil {
			fmt.Println(err)
			return
		}
	}
	s, err := bucket.Inspect(ctx, "tenant-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, w := range s.Windows {
		fmt.Printf("%d of %d a %v are left\n", w.Capacity, w.Size, w.RefreshInterval)
	}
	fmt.Printf("%d of %d tokens are out; a newcomer waits for %v\n", s.InUse, s.Concurrency, s.Bound)
	// Output:
	// 55 of 60 a 1m0s are left
	// 4995 of 5000 a 24h0m0s are left
	// 5 of 5 tokens are out; a newcomer waits for tokens
}

// A handler reports that the provider has answered 429 with Retry-After: 30.
func ExampleBucket_Throttled() {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	bucket, err := drip.New(drip.Options{Size: 40, RefreshRate: 2, Start: time.Unix(0, 0), Clock: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := bucket.Throttled(ctx, "shop-1", 30*time.Second); err != nil {
		fmt.Println(err)
		return
	}
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
	fmt.Println(a.Delay, a.Bound, err)
	// Output: 30s closed <nil>
}
