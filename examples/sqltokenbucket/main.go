// Sqltokenbucket replaces a function in the database that limits rates, such as Franck Pachot's
//
//	select rate_limiting_token_bucket_request('user1', 10, 60);
//
// of his series on token buckets in YugabyteDB and PostgreSQL (dev.to). The function takes a token of a user. The user gains
// so many a second, and has at most the tokens of so many seconds. The function returns how many are left, or -1. Here drip
// decides, and the database keeps the decisions. The limit holds at every isolation level, however many sessions ask and
// however often, and no caller has to try again.
//
//	go run ./examples/sqltokenbucket -url postgres://localhost/postgres -watch 100ms user1 1 10
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage/postgres"
)

func main() {
	log.SetFlags(0)
	url := flag.String("url", os.Getenv("DRIP_POSTGRES_URL"), "the database; defaults to $DRIP_POSTGRES_URL")
	watch := flag.Duration("watch", 0, "ask again each time this has passed, until interrupted")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "sqltokenbucket [-url postgres://…] [-watch 100ms] id [tokens a second] [seconds]")
		flag.PrintDefaults()
	}
	flag.Parse()
	id, rate, window, err := arguments(flag.Args())
	if err != nil {
		log.Print(err)
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *url, *watch, id, rate, window); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// arguments has the defaults of the function.
func arguments(args []string) (id string, rate, window int, err error) {
	if len(args) < 1 || len(args) > 3 {
		return "", 0, 0, errors.New("one to three arguments are needed")
	}
	numbers := [2]int{2, 60}
	for i, arg := range args[1:] {
		if numbers[i], err = strconv.Atoi(arg); err != nil {
			return "", 0, 0, fmt.Errorf("%q is not a number", arg)
		}
	}
	return args[0], numbers[0], numbers[1], nil
}

func run(ctx context.Context, out io.Writer, url string, watch time.Duration, id string, rate, window int) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	f, err := open(ctx, pool, "rate_limiting")
	if err != nil {
		return err
	}
	for {
		left, wait, err := f.request(ctx, id, rate, window)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s %d", time.Now().Format(time.TimeOnly), left)
		if wait > 0 {
			fmt.Fprintf(out, ", the next one in %v", wait)
		}
		fmt.Fprintln(out)
		if watch <= 0 {
			return nil
		}
		select {
		case <-time.After(watch):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// function replaces rate_limiting_token_bucket_request. It is safe for concurrent use.
type function struct {
	storage *postgres.Storage
	clock   func() time.Time // nil: the server's
}

func open(ctx context.Context, pool *pgxpool.Pool, schema string) (*function, error) {
	// There is no call that gives a token back, so they need not be remembered longer than it takes to refill.
	s, err := postgres.New(pool, postgres.Options{Schema: schema, MaxHold: time.Millisecond})
	if err != nil {
		return nil, err
	}
	return &function{storage: s}, s.CreateSchema(ctx)
}

// request takes a token of id and returns how many are left. If there is none it returns -1, and when there will be one.
// An id that was never seen, or not for the time of the window, has rate*window tokens.
//
// It looks at the bucket first. If the bucket is empty it writes nothing, so polling costs a read. Otherwise it takes a token,
// which is another round trip. The number of granted tokens is exact. Callers that ask at the same moment may get the same
// number of tokens left.
func (f *function) request(ctx context.Context, id string, rate, window int) (left int, wait time.Duration, err error) {
	bucket, err := f.bucket(rate, window)
	if err != nil {
		return 0, 0, err
	}
	status, err := bucket.Inspect(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	if left = status.Windows[0].Capacity; left < 1 {
		return -1, status.Delay, nil
	}
	wait, err = bucket.GetDelay(ctx, id)
	if err != nil || wait > 0 { // others were quicker
		return -1, wait, err
	}
	return left - 1, 0, nil
}

// bucket returns a Bucket with the limit of a request. A Bucket is a few numbers; the shared state is in the storage.
func (f *function) bucket(rate, window int) (*drip.Bucket, error) {
	if rate < 1 || window < 1 || rate > math.MaxInt32 || window > math.MaxInt32 {
		return nil, fmt.Errorf("%d tokens a second for %d seconds is not possible", rate, window)
	}
	tokens, every := refill(rate)
	return drip.New(drip.Options{
		Size:            rate * window,
		RefreshRate:     tokens,
		RefreshInterval: every,
		Concurrency:     min(decision.MostUnits, math.MaxInt), // the function does not know when an operation is over
		Start:           time.Unix(0, 0),
		Storage:         f.storage,
		Clock:           f.clock,
	})
}

// refill is how a rate comes: in whole tokens, as evenly as whole milliseconds have it with no more than a hundredth less.
// So three a second are one each 334 ms.
func refill(rate int) (tokens int, every time.Duration) {
	for ms := 1; ; ms++ {
		if tokens, left := rate*ms/1000, rate*ms%1000; left*100 <= rate*ms {
			return tokens, time.Duration(ms) * time.Millisecond // at a whole second nothing is left
		}
	}
}
