package dripriver_test

import (
	"context"
	"log"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/drip-go/drip"
	dripriver "github.com/drip-go/drip/adapters/river"
)

type syncArgs struct {
	Shop string `json:"shop"`
}

func (syncArgs) Kind() string { return "sync" }

// All jobs of a client under the limit of their shops.
func Example() {
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context) error {
	bucket, err := drip.New(drip.Options{Size: 40, RefreshRate: 2})
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, "postgres://localhost/orders")
	if err != nil {
		return err
	}
	defer pool.Close()
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[syncArgs]) error { return nil }))

	limit, err := dripriver.New(dripriver.Options{
		Limiter: bucket,
		Entity:  func(j *rivertype.JobRow) (string, error) { return dripriver.Arg(j, "shop") },
	})
	if err != nil {
		return err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}, Workers: workers,
		Middleware: []rivertype.Middleware{limit},
	})
	if err != nil {
		return err
	}
	return client.Start(ctx)
}
