// Jetstream publishes twelve messages of one shop and handles them as the shop's limit allows. It starts a NATS server of its
// own, unless the environment variable NATS_URL names one, and takes about three seconds.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/drip-go/drip"
	dripjetstream "github.com/drip-go/drip/adapters/jetstream"
	"github.com/drip-go/drip/worker"
)

func main() {
	if err := run(context.Background(), os.Getenv("NATS_URL"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

const messages = 12

func run(ctx context.Context, url string, out io.Writer) error {
	if url == "" {
		own, stop, err := start()
		if err != nil {
			return err
		}
		defer stop()
		url = own
	}
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders"}, Retention: jetstream.WorkQueuePolicy}); err != nil {
		return err
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
		Durable: "sync", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, MaxAckPending: -1,
	})
	if err != nil {
		return err
	}
	for n := range messages {
		m := nats.NewMsg("orders")
		m.Header.Set("shop", "shop-1")
		m.Data = fmt.Append(nil, n+1)
		if _, err := js.PublishMsg(ctx, m); err != nil {
			return err
		}
	}

	// Three a second, and five at once for a shop that has been idle.
	bucket, err := drip.New(drip.Options{Size: 5, RefreshRate: 3, Start: time.Unix(0, 0)})
	if err != nil {
		return err
	}
	limit, err := dripjetstream.New(js, dripjetstream.Options{
		Limiter: bucket,
		Entity:  func(m jetstream.Msg) (string, error) { return m.Headers().Get("shop"), nil },
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	return limit.Consume(ctx, consumer, 100, func(ctx context.Context, m jetstream.Msg) error {
		fmt.Fprintf(out, "%s  order %2s runs; postponements: %d\n", time.Now().Format("15:04:05.000"), m.Data(), worker.OperationOf(ctx).Postponements)
		if handled.Add(1) == messages {
			stop()
		}
		return nil
	})
}

// start starts a server that keeps its streams in a folder. stop removes the folder.
func start() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "drip-nats-")
	if err != nil {
		return "", nil, err
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true})
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	s.Start()
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
		os.RemoveAll(dir)
	}
	if !s.ReadyForConnections(30 * time.Second) {
		stop()
		return "", nil, fmt.Errorf("the NATS server does not start")
	}
	return s.ClientURL(), stop, nil
}
