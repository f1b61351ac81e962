package workertest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/drip-go/drip/workertest"
)

// open connects to a queue of a real server.
func open(_ context.Context, url, name string) (workertest.Queue, error) { return nil, nil }

// The tests of an adapter: TestMain, for the processes that the suite kills, and one test.
func ExampleRun() {
	adapter := workertest.Adapter{Open: open, Late: time.Second, Again: 5 * time.Second}

	_ = func(m *testing.M) { // TestMain
		workertest.Child(adapter)
		os.Exit(m.Run())
	}
	_ = func(t *testing.T) { // TestAdapter
		workertest.Run(t, adapter, os.Getenv("QUEUE_URL"))
	}
}

// How many messages a second go through the adapter.
func ExampleBenchmark() {
	adapter := workertest.Adapter{Open: open, Late: time.Second, Again: 5 * time.Second}

	_ = func(b *testing.B) { // BenchmarkAdapter
		workertest.Benchmark(b, adapter, os.Getenv("QUEUE_URL"))
	}
}
