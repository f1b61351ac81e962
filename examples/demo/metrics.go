package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
)

// metricsOf returns the address at which the i-th consumer process serves its metrics: its port is i above address's port.
func metricsOf(address string, i int) (string, error) {
	if address == "" {
		return "", nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("-metrics: %w", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n+uint64(i) > 65535 {
		return "", fmt.Errorf("-metrics: %q is no port, or too high", port)
	}
	return net.JoinHostPort(host, strconv.Itoa(int(n)+i)), nil
}

// serveMetrics returns a provider whose metrics Prometheus can read at http://address/metrics. When the address is empty,
// or after an error, it records nothing.
func serveMetrics(address string) (p metric.MeterProvider, stop func(), err error) {
	none := noop.NewMeterProvider()
	if address == "" {
		return none, func() {}, nil
	}
	registry := prometheus.NewRegistry()
	exporter, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		return none, func() {}, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return none, func() {}, err
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 2 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			slog.Warn("metrics are not served any more", "error", err)
		}
	}()
	return provider, func() {
		server.Close()
		<-ended
	}, nil
}
