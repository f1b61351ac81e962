// River inserts twelve jobs of three shops and works them as each shop's limit allows, on the PostgreSQL that the environment
// variable DRIP_POSTGRES_URL names. It makes River's tables there, and takes about three seconds.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/drip-go/drip"
	dripriver "github.com/drip-go/drip/adapters/river"
	"github.com/drip-go/drip/worker"
)

func main() {
	if err := run(context.Background(), os.Getenv("DRIP_POSTGRES_URL"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

const shops, perShop = 3, 4

type syncArgs struct {
	Shop  string `json:"shop"`
	Order int    `json:"order"`
}

func (syncArgs) Kind() string { return "sync" }

func run(ctx context.Context, url string, out io.Writer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}

	// One a second, and two at once for a shop that has been idle.
	bucket, err := drip.New(drip.Options{Size: 2, RefreshRate: 1})
	if err != nil {
		return err
	}
	limit, err := dripriver.New(dripriver.Options{
		Limiter: bucket,
		Entity:  func(j *rivertype.JobRow) (string, error) { return dripriver.Arg(j, "shop") },
	})
	if err != nil {
		return err
	}
	done := make(chan struct{}, shops*perShop)
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[syncArgs]) error {
		fmt.Fprintf(out, "%s  order %d of %s runs; postponements: %d\n", time.Now().Format("15:04:05.000"), j.Args.Order, j.Args.Shop, worker.OperationOf(ctx).Postponements)
		done <- struct{}{}
		return nil
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}, Workers: workers,
		Middleware: []rivertype.Middleware{limit},
		// River looks for jobs that are due at this interval. The default is a second.
		FetchPollInterval: 200 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	for n := range shops * perShop {
		if _, err := client.Insert(ctx, syncArgs{fmt.Sprint("shop-", n%shops+1), n/shops + 1}, nil); err != nil {
			return err
		}
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	for range shops * perShop {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	return client.Stop(context.WithoutCancel(ctx))
}
