package telemetry_test

import (
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
	"github.com/drip-go/drip/telemetry"
)

// A memory storage has forgotten the operations before, also if it is timed already.
func TestStartOfATimedMemory(t *testing.T) {
	p := noop.NewMeterProvider()
	s, err := telemetry.Storage(memory.New(), p)
	if err != nil {
		t.Fatal(err)
	}
	o := drip.Options{Size: 5, RefreshRate: 5, RefreshInterval: 24 * 3600e9, Storage: s}
	b, err := telemetry.New(o, p)
	if err != nil {
		t.Fatal(err)
	}
	if a := buckettest.Admit(t, b, "shop", drip.Request{}); a.Delay == 0 {
		t.Error("telemetry.New: a new entity of a memory storage starts full; want it to gain its first capacity with the next interval")
	}
	plain, err := drip.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if a := buckettest.Admit(t, plain, "other", drip.Request{}); a.Delay == 0 {
		t.Error("drip.New: a new entity of a memory storage starts full; want it to gain its first capacity with the next interval")
	}
}
