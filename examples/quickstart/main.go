// Quickstart asks for twelve operations of one shop at once, and again for each one that was postponed. It needs
// no server and takes about three seconds.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/drip-go/drip"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// operation stands for a message in a queue.
type operation struct {
	number int
	due    time.Time
}

func run(ctx context.Context, out io.Writer) error {
	// Three a second, and five at once for a shop that has been idle: since 1970, when we have not seen it yet.
	bucket, err := drip.New(drip.Options{Size: 5, RefreshRate: 3, Start: time.Unix(0, 0)})
	if err != nil {
		return err
	}
	var queue []operation
	for n := range 12 {
		queue = append(queue, operation{number: n + 1, due: time.Now()})
	}
	fmt.Fprintln(out, "shop-1 may run 5 operations at once and 3 more each second; 12 arrive.")
	for len(queue) > 0 {
		op := queue[0]
		queue = queue[1:]
		select {
		case <-time.After(time.Until(op.due)):
		case <-ctx.Done():
			return ctx.Err()
		}
		delay, err := bucket.GetDelay(ctx, "shop-1")
		if err != nil {
			return err
		}
		now := time.Now()
		if delay > 0 {
			fmt.Fprintf(out, "%s  operation %2d is postponed by %v\n", now.Format("15:04:05.000"), op.number, delay)
			op.due = now.Add(delay)
			queue = append(queue, op)
			continue
		}
		fmt.Fprintf(out, "%s  operation %2d runs\n", now.Format("15:04:05.000"), op.number)
		if err := bucket.ReturnToken(ctx, "shop-1"); err != nil {
			return err
		}
	}
	return nil
}
