// Consumer takes messages from a RabbitMQ queue and calls a rate-limited HTTP API with each, no more often than
// the limit of the message's shop allows.
//
//	DRIP_RABBITMQ_URL=amqp://… go run ./examples/consumer -queue orders -api http://127.0.0.1:8080/
//
// The queue must exist. The header "shop" of a message says whose limit it falls under.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/provider"
)

func main() {
	queue := flag.String("queue", "orders", "the `name` of the queue")
	api := flag.String("api", "http://127.0.0.1:8080/", "the `URL` to post the messages to")
	flag.Parse()
	url := cmp.Or(os.Getenv("DRIP_RABBITMQ_URL"), "amqp://guest:guest@127.0.0.1:5672/")

	// The first Ctrl-C ends in good order, the second at once: after stop it is the default again.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)

	if err := run(ctx, url, *queue, *api); err != nil {
		log.Fatal(err)
	}
}

// run consumes until ctx ends and the calls in flight are done.
func run(ctx context.Context, url, queue, api string) error {
	// Ten calls a second for each shop. Kept in this process: for several, give the bucket a Storage they share.
	bucket, err := drip.New(drip.Options{Size: 20, RefreshRate: 10})
	if err != nil {
		return err
	}
	c, err := consumer.New(consumer.Options{
		URL:     url,
		Queue:   queue,
		Limiter: bucket,
		Entity:  shop,
		Request: func(d *amqp.Delivery) drip.Request { return drip.Request{Urgent: d.Priority > 0} },
		Handler: caller{api, &http.Client{Timeout: 10 * time.Second}},
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func shop(d *amqp.Delivery) (string, error) {
	shop, ok := d.Headers["shop"].(string)
	if !ok {
		return "", consumer.Permanent(errors.New(`there is no header "shop"`))
	}
	return shop, nil
}

// caller posts messages to the API. Each call is one operation of the shop's limit.
type caller struct {
	api    string
	client *http.Client
}

func (c caller) Handle(ctx context.Context, d *amqp.Delivery) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.api, bytes.NewReader(d.Body))
	if err != nil {
		return err
	}
	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if s := provider.Read(res); s.Throttled {
		// Somebody else uses up the shop's limit, too. That is no failure: the message comes back later.
		return consumer.Throttled(s.RetryAfter, nil)
	}
	switch {
	case res.StatusCode == http.StatusUnprocessableEntity:
		return consumer.Permanent(errors.New("the API cannot make sense of it"))
	case res.StatusCode >= 300:
		return fmt.Errorf("the API answers %s", res.Status)
	}
	return nil
}
