package drip_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
)

// midday is when the Examples happen.
var midday = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// exampleBucket is a bucket in which all entities are full at midday.
func exampleBucket(o drip.Options) *drip.Bucket {
	o.Start = time.Unix(0, 0)
	if o.Clock == nil {
		o.Clock = func() time.Time { return midday }
	}
	b, err := drip.New(o)
	if err != nil {
		log.Fatal(err)
	}
	return b
}

// A storage is named by configuration. Importing a backend's package registers its scheme.
func ExampleNew() {
	s, err := storage.Open(context.Background(), "memory:") // redis://…, postgres://…
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = drip.New(drip.Options{Size: 40, RefreshRate: 2, Storage: s})
	fmt.Println(err)
	_, err = drip.New(drip.Options{Size: -1})
	fmt.Println(err)
	// Output:
	// <nil>
	// drip: Options.Size is -1; it must be at least 1, or 0 for the default
}

// Two windows and five calls at a time are one decision: an operation takes all of them or none.
func ExampleOptions_windows() {
	bucket := exampleBucket(drip.Options{
		Size: 60, RefreshRate: 60, RefreshInterval: time.Minute,
		Windows:     []drip.Window{{Size: 5000, RefreshInterval: 24 * time.Hour}},
		Concurrency: 2,
	})
	for range 3 {
		a, err := bucket.Admit(context.Background(), "tenant-1", drip.Request{})
		fmt.Println(a.Delay == 0, a.Bound, err)
	}
	// Output:
	// true nothing <nil>
	// true nothing <nil>
	// false tokens <nil>
}

// A quota that comes back at midnight of a time zone.
func ExampleDaily() {
	pacific, err := time.LoadLocation("America/Los_Angeles")
	if err != nil {
		log.Fatal(err)
	}
	bucket, err := drip.New(drip.Options{
		Size: 10, RefreshRate: 10, Concurrency: 5,
		Windows: []drip.Window{{Size: 9995, Align: drip.Daily(pacific)}}, // 10,000 a day, less the calls in flight
	})
	if err != nil {
		log.Fatal(err)
	}
	status, err := bucket.Inspect(context.Background(), "shop")
	fmt.Println(status.Windows[1].Refresh.In(pacific).Format(time.TimeOnly), err)
	// Output: 00:00:00 <nil>
}

// A shop on a better plan has a limit of its own.
func ExampleOptions_limits() {
	plus := map[string]bool{"shop-2": true}
	bucket := exampleBucket(drip.Options{
		Size: 1, RefreshRate: 1,
		Limits: func(_ context.Context, shop string) (drip.Limit, error) {
			if plus[shop] {
				return drip.Limit{Size: 3, RefreshRate: 3}, nil
			}
			return drip.Limit{}, nil // that of the Options
		},
	})
	for _, shop := range []string{"shop-1", "shop-2"} {
		n := 0
		for {
			a, err := bucket.Admit(context.Background(), shop, drip.Request{})
			if err != nil || a.Delay > 0 {
				break
			}
			n++
		}
		fmt.Println(shop, "runs", n, "at once")
	}
	// Output:
	// shop-1 runs 1 at once
	// shop-2 runs 3 at once
}

// An operation that cost more than was expected delays the next ones, one that cost less leaves room for them.
func ExampleBucket_Settle() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{Size: 10, RefreshRate: 10, RefreshInterval: time.Minute})
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{Cost: 5})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = bucket.Settle(ctx, "shop-1", a.Lease, 2) // 3 units come back
	fmt.Println(err)
	err = bucket.Settle(ctx, "shop-1", a.Lease, 2)
	fmt.Println(errors.Is(err, drip.ErrNoLease))
	s, err := bucket.Inspect(ctx, "shop-1")
	fmt.Println(s.Windows[0].Capacity, err)
	// Output:
	// <nil>
	// true
	// 8 <nil>
}

// An operation that was admitted and never sent costs nothing.
func ExampleBucket_Cancel() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Minute})
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := bucket.Cancel(ctx, "shop-1", a); err != nil {
		fmt.Println(err)
		return
	}
	a, err = bucket.Admit(ctx, "shop-1", drip.Request{})
	fmt.Println(a.Delay, err)
	// Output: 0s <nil>
}

// The service refuses an admitted operation with 429. Its message waits with all others of the shop, and keeps its place
// in front of newcomers.
func ExampleLease_Ticket() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{Size: 5, RefreshRate: 5})
	handle := func(shop string, ticket drip.Ticket) error {
		a, err := bucket.Admit(ctx, shop, drip.Request{Ticket: ticket})
		fmt.Println(a.Delay, a.Ticket.IsZero())
		return err
	}
	refused := func(shop string, lease drip.Lease, retryAfter time.Duration) error {
		retryAfter = max(retryAfter, time.Second) // 0 if the service names no time
		if err := bucket.Throttled(ctx, shop, retryAfter); err != nil {
			return err
		}
		if err := bucket.Settle(ctx, shop, lease, lease.Cost()); err != nil {
			return err
		}
		return handle(shop, lease.Ticket()) // Admit postpones it
	}
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
	if err == nil && a.Delay == 0 {
		err = refused("shop-1", a.Lease, 0)
	}
	if err != nil {
		fmt.Println(err)
	}
	// Output: 1s false
}

// An operation that takes longer than Options.Lease renews its lease.
func ExampleBucket_Renew() {
	ctx, now := context.Background(), midday
	bucket := exampleBucket(drip.Options{Lease: time.Minute, Clock: func() time.Time { return now }})
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
	if err != nil {
		fmt.Println(err)
		return
	}
	now = now.Add(40 * time.Second)
	lease, err := bucket.Renew(ctx, "shop-1", a.Lease)
	fmt.Println(lease.End().Sub(midday), err)
	// Output: 1m40s <nil>
}

// An operator closes an entity and opens it again.
func ExampleBucket_Pause() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{})
	ask := func() {
		a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
		fmt.Println(a.Delay, a.Bound, err)
	}
	if err := bucket.Pause(ctx, "shop-1", 10*time.Minute); err != nil {
		fmt.Println(err)
	}
	ask()
	if err := bucket.Resume(ctx, "shop-1"); err != nil {
		fmt.Println(err)
	}
	ask()
	// Output:
	// 10m0s closed <nil>
	// 0s nothing <nil>
}

// The holders of all tokens are known to be gone.
func ExampleBucket_Reset() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{Size: 10, Concurrency: 1})
	if _, err := bucket.Admit(ctx, "shop-1", drip.Request{}); err != nil {
		fmt.Println(err)
		return
	}
	if err := bucket.Reset(ctx, "shop-1"); err != nil {
		fmt.Println(err)
		return
	}
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
	fmt.Println(a.Delay, err)
	// Output: 0s <nil>
}

// A simulation gives the time of each call. The zero time is the clock.
func ExampleBucket_GetDelayAt() {
	bucket := exampleBucket(drip.Options{Size: 1, RefreshRate: 1, Concurrency: 5})
	for _, at := range []time.Duration{0, 250 * time.Millisecond, 2 * time.Second} {
		delay, err := bucket.GetDelayAt(context.Background(), "shop-1", midday.Add(at))
		fmt.Println(delay, err)
	}
	// Output:
	// 0s <nil>
	// 750ms <nil>
	// 0s <nil>
}

// The ticket travels with the message as a text, and lets it run before newcomers.
func ExampleParseTicket() {
	ctx, now := context.Background(), midday
	bucket := exampleBucket(drip.Options{Size: 1, RefreshRate: 1, Concurrency: 5, Clock: func() time.Time { return now }})
	ask := func(who string, t drip.Ticket) drip.Admission {
		a, err := bucket.Admit(ctx, "shop-1", drip.Request{Ticket: t})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %v\n", who, a.Delay)
		return a
	}
	ask("first", drip.Ticket{})
	header := ask("second", drip.Ticket{}).Ticket.String()

	now = now.Add(time.Second)
	ask("newcomer", drip.Ticket{})
	ticket, err := drip.ParseTicket(header) // after an error it is a newcomer's
	if err != nil {
		fmt.Println(err)
	}
	ask("second", ticket)
	// Output:
	// first: 0s
	// second: 1s
	// newcomer: 1s
	// second: 0s
}

// An operation that is worth nothing after its deadline is not booked.
func ExampleRequest_deadline() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Minute})
	for range 2 {
		_, err := bucket.Admit(ctx, "shop-1", drip.Request{Deadline: midday.Add(10 * time.Second)})
		fmt.Println(errors.Is(err, drip.ErrDeadline))
	}
	// Output:
	// false
	// true
}

// The provider has refused a call because of the app's limit: every shop within it waits.
func ExampleSharedID() {
	ctx := context.Background()
	bucket := exampleBucket(drip.Options{Shared: map[string]drip.Limit{"app": {Size: 50}}})
	if err := bucket.Throttled(ctx, drip.SharedID("app"), 5*time.Second); err != nil {
		fmt.Println(err)
		return
	}
	a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
	fmt.Println(a.Delay, a.Bound, a.Limit, err)
	// Output: 5s closed app <nil>
}

// The app's limit is on trial: it lets pass, while the limit of each shop holds.
func ExampleLimit_shadow() {
	ctx := context.Background()
	shadow := &drip.Shadow{
		Bucket: exampleBucket(drip.Options{Size: 2, RefreshRate: 1, Shared: map[string]drip.Limit{
			"app": {Size: 1, Shadow: true},
		}}),
		OnPostponed: func(shop string, a drip.Admission) {
			fmt.Println(shop, "would have been postponed by", a.Limit)
		},
	}
	defer shadow.Close()
	for range 3 {
		a, err := shadow.Admit(ctx, "shop-1", drip.Request{})
		fmt.Println(a.Delay > 0, err)
	}
	// Output:
	// false <nil>
	// shop-1 would have been postponed by app
	// false <nil>
	// true <nil>
}

// A shadow counts what limits would postpone, and lets everything run.
func ExampleShadow() {
	ctx := context.Background()
	shadow := &drip.Shadow{
		Bucket: exampleBucket(drip.Options{Size: 1, RefreshRate: 1}),
		OnPostponed: func(shop string, a drip.Admission) {
			fmt.Println(shop, "would have been postponed:", a.Bound)
		},
	}
	defer shadow.Close()
	for range 2 {
		a, err := shadow.Admit(ctx, "shop-1", drip.Request{})
		fmt.Println(a.Delay, err)
	}
	// Output:
	// 0s <nil>
	// shop-1 would have been postponed: window 1
	// 0s <nil>
}

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
