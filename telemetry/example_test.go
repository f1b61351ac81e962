package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/storage/memory"
	"github.com/drip-go/drip/telemetry"
)

// A consumer that is measured and traced.
func ExampleNew() {
	// These record nothing. Take the providers of your program's SDK.
	meters, tracers := metricnoop.NewMeterProvider(), tracenoop.NewTracerProvider()

	bucket, err := telemetry.New(drip.Options{Size: 20, RefreshRate: 10}, meters)
	if err != nil {
		log.Fatal(err)
	}
	c, err := consumer.New(consumer.Options{
		URL: "amqp://localhost/", Queue: "orders", Limiter: bucket, Entity: shop, Handler: consumer.HandlerFunc(handle),
		MeterProvider: meters, TracerProvider: tracers,
	})
	fmt.Println(c != nil, err)
	// Output: true <nil>
}

func shop(d *amqp.Delivery) (string, error) {
	if d.Type == "" {
		return "", errors.New("the message has no type")
	}
	return d.Type, nil
}

func handle(context.Context, *amqp.Delivery) error { return nil }

// A storage that is measured, in a bucket that is not.
func ExampleStorage() {
	s, err := telemetry.Storage(memory.New(), metricnoop.NewMeterProvider(), attribute.String("service", "orders"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = drip.New(drip.Options{Size: 20, RefreshRate: 10, Storage: s})
	fmt.Println(err)
	// Output: <nil>
}

// A consumer that handles everything at once, and counts what would be postponed.
func ExampleNew_shadow() {
	meters := metricnoop.NewMeterProvider() // take the one of your program's SDK
	bucket, err := telemetry.New(drip.Options{Size: 20, RefreshRate: 10}, meters)
	if err != nil {
		log.Fatal(err)
	}
	shadow := &drip.Shadow{Bucket: bucket}
	defer shadow.Close()
	c, err := consumer.New(consumer.Options{
		URL: "amqp://localhost/", Queue: "orders", Limiter: shadow, Entity: shop, Handler: consumer.HandlerFunc(handle),
	})
	fmt.Println(c != nil, err)
	// Output: true <nil>
}

// The app's limit is on trial, while the limit of each shop holds.
func ExampleNew_trial() {
	meters := metricnoop.NewMeterProvider() // take the one of your program's SDK
	options := drip.Options{Size: 20, RefreshRate: 10, Shared: map[string]drip.Limit{}}
	options.Shared["app"] = drip.Limit{Size: 40, RefreshRate: 20, Shadow: true}
	bucket, err := telemetry.New(options, meters)
	if err != nil {
		log.Fatal(err)
	}
	shadow := &drip.Shadow{Bucket: bucket}
	defer shadow.Close()
	fmt.Println(shadow.Waiting())
	// Output: 0
}

// The limit of each shop is on trial, while the app's limit holds.
func ExampleNew_ownTrial() {
	meters := metricnoop.NewMeterProvider() // take the one of your program's SDK
	options := drip.Options{Size: 20, RefreshRate: 10, Shadow: true}
	options.Shared = map[string]drip.Limit{"app": {Size: 40, RefreshRate: 20}}
	bucket, err := telemetry.New(options, meters)
	if err != nil {
		log.Fatal(err)
	}
	shadow := &drip.Shadow{Bucket: bucket}
	defer shadow.Close()
	fmt.Println(shadow.Waiting())
	// Output: 0
}
