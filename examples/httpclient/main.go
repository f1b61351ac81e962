// Httpclient calls a rate-limited HTTP API whose limit somebody else uses, too. The client's transport reads the API's
// answers: one refused call closes its shop for as long as the API wants, for all that waits, and no further call is refused.
// It needs no server and takes about three seconds.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/provider"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: newAPI("shop-1"), ReadHeaderTimeout: time.Second}
	go func() { log.Fatal(server.Serve(listener)) }()
	if err := run(context.Background(), "http://"+listener.Addr().String(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// open is what the API allows each shop. A call is counted at most 50 ms after it was admitted.
func open() (*drip.Bucket, error) {
	limit, err := provider.Limit(50*time.Millisecond, provider.LeakyBucket(10, 5))
	if err != nil {
		return nil, err
	}
	options := provider.Options(limit)
	options.Start = time.Unix(0, 0) // shops not seen yet have been idle
	return drip.New(options)
}

// operation stands for a message in a queue.
type operation struct {
	shop   string
	number int
	due    time.Time
	ticket drip.Ticket
}

// run makes ten calls for each of two shops.
func run(ctx context.Context, api string, out io.Writer) error {
	bucket, err := open()
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &provider.Transport{
		Bucket: bucket,
		OnThrottled: func(r *http.Request, s provider.Status, err error) {
			shop := provider.EntityOf(r.Context())
			if err != nil {
				fmt.Fprintf(out, "%s was refused, and the bucket was not told: %v\n", shop, err)
				return
			}
			fmt.Fprintf(out, "%s was refused: closed for %v\n", shop, s.RetryAfter)
		},
	}}
	defer client.CloseIdleConnections()

	begin := time.Now()
	var queue []operation
	for n := range 10 {
		queue = append(queue, operation{shop: "shop-1", number: n + 1}, operation{shop: "shop-2", number: n + 1})
	}
	for len(queue) > 0 {
		op := queue[0]
		queue = queue[1:]
		select {
		case <-time.After(time.Until(op.due)):
		case <-ctx.Done():
			return ctx.Err()
		}
		a, err := bucket.Admit(ctx, op.shop, drip.Request{Ticket: op.ticket})
		if err != nil {
			return err
		}
		done := false
		if a.Delay == 0 {
			done, err = call(provider.WithEntity(ctx, op.shop), client, api)
			if err := bucket.Settle(context.WithoutCancel(ctx), op.shop, a.Lease, a.Lease.Cost()); err != nil {
				return err
			}
			if err != nil {
				return err
			}
		}
		if a.Delay == 0 && !done { // refused: the bucket says until when, and keeps its place before newcomers
			op.ticket = a.Lease.Ticket()
			queue = slices.Insert(queue, 0, op)
			continue
		}
		if a.Delay > 0 {
			op.due, op.ticket = time.Now().Add(a.Delay), a.Ticket
			queue = append(queue, op)
			slices.SortStableFunc(queue, func(a, b operation) int { return cmp.Compare(a.due.UnixMilli(), b.due.UnixMilli()) })
			continue
		}
		fmt.Fprintf(out, "%4d ms  %s call %d\n", time.Since(begin).Milliseconds(), op.shop, op.number)
	}
	return nil
}

// call reports whether the API has done the operation. The transport handles refused calls.
func call(ctx context.Context, client *http.Client, api string) (done bool, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, api, nil)
	if err != nil {
		return false, err
	}
	request.Header.Set("X-Shop", provider.EntityOf(ctx))
	response, err := client.Do(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	switch {
	case provider.Read(response).Throttled:
		return false, nil
	case response.StatusCode != http.StatusOK:
		return false, fmt.Errorf("the API answers %s", response.Status)
	}
	return true, nil
}
