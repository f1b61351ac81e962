// Handler is a message handler of one's own, around a queue of one's own. The queue is a slice here, and 12 messages of two
// shops wait in it.
//
//	go run ./examples/handler
//	go run ./examples/handler -storage postgres://localhost/postgres
//
// With a storage that processes share, run it in two terminals at once: together they keep each shop's limit.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
	_ "github.com/drip-go/drip/storage/redis"
)

func main() {
	url := flag.String("storage", "memory:", "the `URL` of the storage")
	flag.Parse()
	if err := run(context.Background(), *url, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// message is a message of the queue, with its ticket.
type message struct {
	shop   string
	ticket drip.Ticket
	due    time.Time
}

type program struct {
	bucket *drip.Bucket
	queue  []message
	out    io.Writer
}

func run(ctx context.Context, url string, out io.Writer) error {
	s, err := storage.Open(ctx, url)
	if err != nil {
		return err
	}
	if c, ok := s.(io.Closer); ok {
		defer c.Close()
	}
	if p, ok := s.(*postgres.Storage); ok {
		if err := p.CreateSchema(ctx); err != nil { // once, or postgres.SchemaSQL in your migrations
			return err
		}
	}
	bucket, err := drip.New(drip.Options{
		Size: 3, RefreshRate: 2, // each shop: 2 a second, 3 at once if it was idle
		Shared:  map[string]drip.Limit{"app": {Size: 5}}, // all shops together: 5 a second
		Storage: s,
	})
	if err != nil {
		return err
	}
	p := program{bucket: bucket, out: out}
	for n := range 12 {
		p.queue = append(p.queue, message{shop: fmt.Sprintf("shop-%d", n%2+1), due: time.Now()})
	}
	for len(p.queue) > 0 {
		slices.SortStableFunc(p.queue, func(a, b message) int { return a.due.Compare(b.due) })
		m := p.queue[0]
		p.queue = p.queue[1:]
		select {
		case <-time.After(time.Until(m.due)):
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := p.handle(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) handle(ctx context.Context, m message) error {
	a, err := p.bucket.Admit(ctx, m.shop, drip.Request{Ticket: m.ticket})
	if err != nil {
		return err
	}
	if a.Delay > 0 {
		return p.postpone(m, a.Delay, a.Ticket) // back into the queue, with its ticket
	}
	defer p.bucket.Settle(context.WithoutCancel(ctx), m.shop, a.Lease, a.Lease.Cost())
	return p.call(ctx, m)
}

// postpone puts a message back into the queue. With a broker it publishes a copy to a delay queue, the ticket in a header.
func (p *program) postpone(m message, delay time.Duration, ticket drip.Ticket) error {
	m.due, m.ticket = time.Now().Add(delay), ticket
	p.queue = append(p.queue, m)
	fmt.Fprintf(p.out, "%s  %s is postponed by %v\n", time.Now().Format("15:04:05.000"), m.shop, delay)
	return nil
}

// call calls the rate-limited service.
func (p *program) call(_ context.Context, m message) error {
	fmt.Fprintf(p.out, "%s  %s runs\n", time.Now().Format("15:04:05.000"), m.shop)
	return nil
}
