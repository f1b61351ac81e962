// Observability is a rate-limited consumer that is measured and traced with OpenTelemetry. Prometheus reads the metrics at
// http://127.0.0.1:9464/metrics, and dashboard.json shows them in Grafana; README.md says how.
//
//	DRIP_RABBITMQ_URL=amqp://… go run . -storage redis://127.0.0.1:6379/0 -spans spans.json
//
// It makes a queue, publishes messages for a few shops, and handles them with calls of an API. Some calls fail, are refused
// or hang.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/memory"
	_ "github.com/drip-go/drip/storage/redis"
	"github.com/drip-go/drip/telemetry"
)

func main() {
	address := flag.String("metrics", "127.0.0.1:9464", "the `address` to serve the metrics at")
	storageURL := flag.String("storage", "memory:", "the `URL` of the storage")
	spans := flag.String("spans", "", "write spans to this `file`")
	flag.Parse()
	url := cmp.Or(os.Getenv("DRIP_RABBITMQ_URL"), "amqp://guest:guest@127.0.0.1:5672/")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)

	if err := start(ctx, url, *storageURL, *address, *spans); err != nil {
		log.Fatal(err)
	}
}

func start(ctx context.Context, url, storageURL, address, spans string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	out := io.Discard
	if spans != "" {
		file, err := os.Create(spans)
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	return run(ctx, url, storageURL, listener, out)
}

// run consumes until ctx ends, serves metrics at the listener and writes spans to out.
func run(ctx context.Context, url, storageURL string, listener net.Listener, out io.Writer) (err error) {
	registry := prometheus.NewRegistry()
	metrics, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return err
	}
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(metrics))
	server := &http.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), ReadHeaderTimeout: 2 * time.Second}
	go server.Serve(listener)
	defer server.Close()

	exporter, err := stdouttrace.New(stdouttrace.WithWriter(out))
	if err != nil {
		return err
	}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter))
	defer func() { err = errors.Join(err, tracers.Shutdown(context.WithoutCancel(ctx))) }()

	s, err := storage.Open(ctx, storageURL)
	if err != nil {
		return err
	}
	if c, ok := s.(io.Closer); ok {
		defer c.Close()
	}
	// drip.New, and measured.
	bucket, err := telemetry.New(drip.Options{
		Size: 10, RefreshRate: 10, Concurrency: 5, Lease: 500 * time.Millisecond, MaxLease: time.Second,
		Storage: s,
	}, meters)
	if err != nil {
		return err
	}
	queue, err := openQueue(url)
	if err != nil {
		return err
	}
	defer queue.close()
	c, err := consumer.New(consumer.Options{
		URL:            url,
		Queue:          queue.name,
		Limiter:        bucket,
		Entity:         shop,
		Handler:        consumer.HandlerFunc(handle),
		Attempts:       3,
		RetryDelay:     200 * time.Millisecond,
		MeterProvider:  meters,
		TracerProvider: tracers,
	})
	if err != nil {
		return err
	}
	published := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		published <- queue.publish(ctx, tracers.Tracer("publisher"))
		cancel()
	}()
	err = c.Run(ctx)
	cancel()
	return errors.Join(err, <-published)
}
