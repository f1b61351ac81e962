// Customstorage keeps the state of the entities in a file, by the backend in the folder boltstorage. Run it twice
// within ten seconds: the second run knows what the first one did.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/drip-go/drip"
	_ "github.com/drip-go/drip/examples/customstorage/boltstorage" // registers "bolt"
	"github.com/drip-go/drip/storage"
)

func main() {
	url := flag.String("storage", "bolt:drip.db", "the `URL` of the storage")
	flag.Parse()
	if err := run(context.Background(), *url, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string, out io.Writer) (err error) {
	s, err := storage.Open(ctx, url)
	if err != nil {
		return err
	}
	if c, ok := s.(io.Closer); ok {
		defer func() {
			if closing := c.Close(); err == nil {
				err = closing
			}
		}()
	}
	bucket, err := drip.New(drip.Options{
		Size: 5, RefreshRate: 1, RefreshInterval: 10 * time.Second,
		Storage: s,
	})
	if err != nil {
		return err
	}
	for range 3 {
		delay, err := bucket.GetDelay(ctx, "shop-1")
		if err != nil {
			return err
		}
		if delay > 0 {
			fmt.Fprintf(out, "postponed by %v\n", delay)
			continue
		}
		fmt.Fprintln(out, "runs")
		if err := bucket.ReturnToken(ctx, "shop-1"); err != nil {
			return err
		}
	}
	return nil
}
