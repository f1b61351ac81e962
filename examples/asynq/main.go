// Asynq enqueues twelve tasks of three shops and handles them as each shop's limit allows, in the Redis that the environment
// variable DRIP_REDIS_URL names, redis://localhost:6379 by default. It takes about three seconds.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/hibiken/asynq"

	"github.com/drip-go/drip"
	dripasynq "github.com/drip-go/drip/adapters/asynq"
	"github.com/drip-go/drip/worker"
)

func main() {
	if err := run(context.Background(), cmp.Or(os.Getenv("DRIP_REDIS_URL"), "redis://localhost:6379"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

const shops, perShop = 3, 4

func run(ctx context.Context, url string, out io.Writer) error {
	redis, err := asynq.ParseRedisURI(url)
	if err != nil {
		return err
	}
	client := asynq.NewClient(redis)
	defer client.Close()
	for n := range shops * perShop {
		// Headers of their own spare tasks a copy.
		if _, err := client.EnqueueContext(ctx, asynq.NewTaskWithHeaders("sync", fmt.Append(nil, "shop-", n%shops+1), dripasynq.Headers())); err != nil {
			return err
		}
	}

	// One a second, and two at once for a shop that has been idle.
	bucket, err := drip.New(drip.Options{Size: 2, RefreshRate: 1})
	if err != nil {
		return err
	}
	limit, err := dripasynq.New(redis, dripasynq.Options{
		Limiter: bucket,
		Entity:  func(t *asynq.Task) (string, error) { return string(t.Payload()), nil },
	})
	if err != nil {
		return err
	}
	defer limit.Close()
	done := make(chan struct{}, shops*perShop)
	mux := asynq.NewServeMux()
	mux.Use(limit.Middleware)
	mux.HandleFunc("sync", func(ctx context.Context, t *asynq.Task) error {
		fmt.Fprintf(out, "%s  a task of %s runs; postponements: %d\n", time.Now().Format("15:04:05.000"), t.Payload(), worker.OperationOf(ctx).Postponements)
		done <- struct{}{}
		return nil
	})
	server := asynq.NewServer(redis, limit.Configure(asynq.Config{Concurrency: 100, LogLevel: asynq.WarnLevel}))
	if err := server.Start(mux); err != nil {
		return err
	}
	defer server.Shutdown()
	for range shops * perShop {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
