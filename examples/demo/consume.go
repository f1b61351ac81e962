package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	limits "github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/redis"
	"github.com/drip-go/drip/telemetry"
)

// A consumer process is this program with a variable in its environment, and with its settings as JSON on its
// standard input. It runs until that input ends, which also happens when the demo is killed.
const (
	roleVariable = "DRIP_DEMO_ROLE"
	consumerRole = "consumer"
)

type settings struct {
	RabbitMQ string // URLs
	Storage  string
	Provider string
	Queue    string
	Metrics  string          // address to serve them at, empty for none
	Rules    map[string]rule // what the provider allows the shops together
}

const drainTime = 5 * time.Second // far more than a call takes

func consumerMain() int {
	// The terminal's Ctrl-C is for the demo, which ends its consumers in order.
	signal.Ignore(os.Interrupt, syscall.SIGHUP, syscall.SIGPIPE)
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	var s settings
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		fmt.Fprintln(os.Stderr, "settings:", err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
		time.Sleep(2 * drainTime)
		os.Exit(1) // something hangs, and nobody may be left to end it
	}()
	if err := consume(ctx, s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// consume runs a rate-limited consumer as in any program, except that it reports to the demo: for each time that the
// limiter is asked about an order, it prints the order's number in a line.
func consume(ctx context.Context, s settings, out io.Writer) error {
	store, err := storage.Open(ctx, s.Storage)
	if err != nil {
		return err
	}
	defer closeStorage(store)
	meters, stopMetrics, err := serveMetrics(s.Metrics)
	if err != nil {
		slog.Warn("no metrics; choose another -metrics address", "error", err)
	}
	defer stopMetrics()
	shared := map[string]drip.Limit{}
	for name, r := range s.Rules {
		if shared[name], err = limits.Limit(onTheWay, limits.LeakyBucket(r.Size, float64(r.PerSecond))); err != nil {
			return err
		}
	}
	bucket, err := telemetry.New(drip.Options{
		Size:            size,
		RefreshRate:     refreshRate,
		RefreshInterval: refreshInterval,
		Storage:         store,
		Shared:          shared,
		History:         true,
	}, meters)
	if err != nil {
		return err
	}
	reports := log.New(out, "", 0)
	c, err := consumer.New(consumer.Options{
		URL:     s.RabbitMQ,
		Queue:   s.Queue,
		Limiter: bucket,
		Entity: func(d *amqp.Delivery) (string, error) {
			shop, n, err := orderOf(d)
			if err != nil {
				return "", err
			}
			reports.Print(n) // a Limiter hears of the shop only
			return s.Queue + "." + shop, nil
		},
		Request: func(d *amqp.Delivery) drip.Request {
			r := drip.Request{Within: []string{appLimit}}
			if _, n, err := orderOf(d); err == nil && aboutStock(n) {
				r.Within = append(r.Within, stockLimit)
			}
			r.Urgent, _ = d.Headers[urgentHeader].(bool)
			return r
		},
		Handler:       placeOrders(s.Provider),
		DrainTime:     drainTime,
		MeterProvider: meters,
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// closeStorage ends the connection of a storage that has one.
func closeStorage(s storage.Storage) {
	if c, ok := s.(io.Closer); ok {
		c.Close()
	}
}

// orderOf returns the order that publish has put into the message.
func orderOf(d *amqp.Delivery) (shop string, n int, err error) {
	shop, _ = d.Headers[shopHeader].(string)
	n, err = strconv.Atoi(d.MessageId)
	if shop == "" || err != nil {
		return "", 0, fmt.Errorf("not an order: shop %q, number %q", shop, d.MessageId)
	}
	return shop, n, nil
}

// placeOrders returns a handler that calls the provider.
func placeOrders(url string) consumer.HandlerFunc {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000} // all calls go to one host; the default keeps 2 connections
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	return func(ctx context.Context, d *amqp.Delivery) error {
		shop, n, err := orderOf(d)
		if err != nil {
			return err
		}
		endpoint := "orders"
		if aboutStock(n) {
			endpoint = stockLimit
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("%s/shops/%s/%s/%d", url, shop, endpoint, n), nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		io.Copy(io.Discard, response.Body) // or the connection can't be used again
		switch response.StatusCode {
		case http.StatusOK:
			return nil
		case http.StatusTooManyRequests:
			after, _ := strconv.Atoi(response.Header.Get("Retry-After"))
			wait := time.Duration(max(1, after)) * time.Second
			if shared := response.Header.Get(limitHeader); shared != "" {
				return consumer.ThrottledShared(shared, wait, nil)
			}
			return consumer.Throttled(wait, nil)
		default:
			return fmt.Errorf("the provider answered %s", response.Status)
		}
	}
}
