package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
)

// shop tells whose limit a message falls under.
func shop(d *amqp.Delivery) (string, error) {
	if d.Type == "" {
		return "", consumer.Permanent(errors.New("the message has no type"))
	}
	return d.Type, nil
}

func newBucket(o drip.Options) *drip.Bucket {
	bucket, err := drip.New(o)
	if err != nil {
		log.Fatal(err)
	}
	return bucket
}

// logPostponer says what DelayQueues would do.
type logPostponer struct{}

func (logPostponer) Postpone(_ context.Context, d *amqp.Delivery, delay time.Duration) error {
	fmt.Println(d.Type, "is postponed:", delay > 0)
	return nil
}

// A consumer of the queue "orders", which exists, until Ctrl-C.
func Example() {
	c, err := consumer.New(consumer.Options{
		URL:     "amqp://guest:guest@localhost:5672/",
		Queue:   "orders",
		Limiter: newBucket(drip.Options{Size: 40, RefreshRate: 2}),
		Entity:  shop,
		Handler: consumer.HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			log.Printf("%s: %s", d.Type, d.Body) // call the shop
			return nil
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// The options are checked before anything is connected.
func ExampleNew() {
	_, err := consumer.New(consumer.Options{URL: "amqp://localhost/", Queue: "orders", Entity: shop})
	fmt.Println(err)
	// Output: consumer: Options.Handler is missing
}

// Messages of one endpoint are within its limit as well, cost more, and are worth nothing after a minute.
func ExampleOptions_request() {
	c, err := consumer.New(consumer.Options{
		URL: "amqp://localhost/", Queue: "orders", Entity: shop,
		Limiter: newBucket(drip.Options{
			Size: 40, RefreshRate: 2,
			Shared: map[string]drip.Limit{"app": {Size: 50}, "export": {Size: 5}},
		}),
		Request: func(d *amqp.Delivery) drip.Request {
			if d.RoutingKey == "export" {
				return drip.Request{Cost: 3, Deadline: d.Timestamp.Add(time.Minute)}
			}
			return drip.Request{Within: []string{"app"}, Urgent: d.Priority > 0}
		},
		Handler: consumer.HandlerFunc(func(context.Context, *amqp.Delivery) error { return nil }),
	})
	fmt.Println(c != nil, err)
	// Output: true <nil>
}

// A middleware for a consume loop of one's own: nil means that the loop acknowledges.
func ExampleLimit() {
	bucket := newBucket(drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 24 * time.Hour, Start: time.Unix(0, 0)})
	handler := consumer.HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
		fmt.Println(d.Type, "is handled")
		return nil
	})
	limited := consumer.Limit(bucket, shop, logPostponer{})(handler) // in production: DelayQueues
	for range 2 {
		err := limited.Handle(context.Background(), &amqp.Delivery{Type: "shop-1"})
		fmt.Println("acknowledge:", err == nil)
	}
	// Output:
	// shop-1 is handled
	// acknowledge: true
	// shop-1 is postponed: true
	// acknowledge: true
}

// The same for messages that cost several units.
func ExampleLimitRequests() {
	bucket := newBucket(drip.Options{Size: 3, RefreshRate: 3, RefreshInterval: 24 * time.Hour, Start: time.Unix(0, 0)})
	cost := func(d *amqp.Delivery) drip.Request { return drip.Request{Cost: len(d.Body)} }
	handler := consumer.HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
		fmt.Println(d.Type, "is handled")
		return nil
	})
	limited := consumer.LimitRequests(bucket, shop, cost, logPostponer{})(handler)
	for _, body := range []string{"ab", "cd"} {
		if err := limited.Handle(context.Background(), &amqp.Delivery{Type: "shop-1", Body: []byte(body)}); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// shop-1 is handled
	// shop-1 is postponed: true
}

// Delay queues and a consume loop of one's own.
func ExampleOpenDelayQueues() {
	ctx := context.Background()
	connection, err := amqp.Dial("amqp://localhost/")
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		log.Fatal(err)
	}
	deliveries, err := channel.ConsumeWithContext(ctx, "orders", "", false, false, false, false, nil)
	if err != nil {
		log.Fatal(err)
	}
	delays, err := consumer.OpenDelayQueues(ctx, consumer.DelayQueuesOptions{URL: "amqp://localhost/", Queue: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	defer delays.Close()
	handler := consumer.HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error { return nil })
	limited := consumer.Limit(newBucket(drip.Options{}), shop, delays)(handler)
	for d := range deliveries {
		switch err := limited.Handle(ctx, &d); {
		case err == nil:
			err = d.Ack(false)
			if err != nil {
				log.Print(err)
			}
		default:
			if err := d.Reject(!consumer.IsPermanent(err)); err != nil {
				log.Print(err)
			}
		}
	}
}

// A handler returns Throttled after the provider has answered 429 with Retry-After: 30.
func ExampleThrottled() {
	refused := errors.New("429 Too Many Requests")
	handler := consumer.HandlerFunc(func(context.Context, *amqp.Delivery) error {
		return consumer.Throttled(30*time.Second, refused) // no retry is spent, and the shop is closed for 30 seconds
	})
	err := handler.Handle(context.Background(), &amqp.Delivery{})
	fmt.Println(err, errors.Is(err, refused))
	// Output: throttled for 30s: 429 Too Many Requests true
}

// The provider refused because of the app's limit. All shops wait, and each keeps its capacity.
func ExampleThrottledShared() {
	fmt.Println(consumer.ThrottledShared("app", 5*time.Second, nil))
	// Output: throttled for 5s by the limit "app"
}

// A resource is busy: this message waits, the other messages of the shop go on.
func ExampleLater() {
	fmt.Println(consumer.Later(10*time.Second, errors.New("the report is not ready")))
	// Output: postponed by 10s: the report is not ready
}

// A message that would fail again goes to the dead letters at once.
func ExamplePermanent() {
	err := consumer.Permanent(errors.New("no such order"))
	fmt.Println(err, consumer.IsPermanent(err))
	// Output: no such order true
}

// A handler that knows how often its message has failed, and says what its call has cost.
func ExampleOperationOf() {
	handler := consumer.HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
		op := consumer.OperationOf(ctx)
		fmt.Println(op.Entity, "attempts:", op.Attempts)
		op.SetCost(2) // as the response says
		return nil
	})
	bucket := newBucket(drip.Options{Start: time.Unix(0, 0)})
	limited := consumer.Limit(bucket, shop, logPostponer{})(handler)
	if err := limited.Handle(context.Background(), &amqp.Delivery{Type: "shop-1"}); err != nil {
		fmt.Println(err)
	}
	// Output: shop-1 attempts: 0
}

// A publisher whose trace goes on in the handler.
func ExampleTraceHeaders() {
	message := amqp.Publishing{Headers: amqp.Table{}}
	propagation.TraceContext{}.Inject(context.Background(), consumer.TraceHeaders(message.Headers))
	fmt.Println(len(message.Headers)) // there is no trace here
	// Output: 0
}
