package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/oktest"
)

func TestMetricsAddresses(t *testing.T) {
	for _, c := range []struct {
		address string
		i       int
		want    string // empty for an error
	}{
		{"127.0.0.1:9464", 0, "127.0.0.1:9464"},
		{"127.0.0.1:9464", 3, "127.0.0.1:9467"},
		{"[::1]:65534", 1, "[::1]:65535"},
		{":9464", 1, ":9465"},
		{"127.0.0.1:65535", 1, ""},
		{"127.0.0.1:0", 0, ""},
		{"127.0.0.1:http", 0, ""},
		{"127.0.0.1", 0, ""},
	} {
		if got, err := metricsOf(c.address, c.i); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("process %d of %s: %q, %v, want %q", c.i, c.address, got, err, c.want)
		}
	}
	if got, err := metricsOf("", 1); got != "" || err != nil {
		t.Errorf("without metrics: %q, %v", got, err)
	}
}

func TestServeMetrics(t *testing.T) {
	address := freeAddress(t)
	meters, stop, err := serveMetrics(address)
	oktest.OK(t, err)
	counter, err := meters.Meter("").Int64Counter("things")
	oktest.OK(t, err)
	counter.Add(context.Background(), 3)
	if text := get(t, address); !strings.Contains(text, "\nthings_total{") {
		t.Errorf("the metrics are\n%s", text)
	}
	// A client that sends no whole header does not keep its connection.
	conn, err := net.Dial("tcp", address)
	oktest.OK(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /metrics HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("half a header keeps its connection: %v", err)
	}
	// A process that gets no port works without one.
	meters, stopOther, err := serveMetrics(address)
	if err == nil || meters == nil {
		t.Errorf("an address that is taken: %v, %v", meters, err)
	}
	stopOther()
	stop()
	if _, stop, err = serveMetrics(address); err != nil {
		t.Errorf("the address is not free again: %v", err)
	}
	stop()
}

// freeAddress is one that was free a moment ago.
func freeAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	oktest.OK(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func get(t *testing.T, address string) string {
	response, err := http.Get("http://" + address + "/metrics")
	oktest.OK(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	oktest.OK(t, err)
	return string(text)
}
