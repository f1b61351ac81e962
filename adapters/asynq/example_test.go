package dripasynq_test

import (
	"context"
	"log"

	"github.com/hibiken/asynq"

	"github.com/drip-go/drip"
	dripasynq "github.com/drip-go/drip/adapters/asynq"
)

// The tasks of a server under the limit of their shops. The payload of a task is its shop.
func Example() {
	if err := run(); err != nil {
		log.Print(err)
	}
}

func handle(context.Context, *asynq.Task) error { return nil }

func run() error {
	bucket, err := drip.New(drip.Options{Size: 40, RefreshRate: 2})
	if err != nil {
		return err
	}
	redis := asynq.RedisClientOpt{Addr: "localhost:6379"}
	mux := asynq.NewServeMux()
	mux.HandleFunc("sync", handle)

	limit, err := dripasynq.New(redis, dripasynq.Options{
		Limiter: bucket,
		Entity:  func(t *asynq.Task) (string, error) { return string(t.Payload()), nil },
	})
	if err != nil {
		return err
	}
	defer limit.Close()
	mux.Use(limit.Middleware)
	return asynq.NewServer(redis, limit.Configure(asynq.Config{Concurrency: 100})).Run(mux)
}

// A task that saves the copy at its first postponement.
func ExampleHeaders() {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: "localhost:6379"})
	defer client.Close()
	if _, err := client.Enqueue(asynq.NewTaskWithHeaders("sync", []byte("shop-1"), dripasynq.Headers())); err != nil {
		log.Print(err)
	}
}
