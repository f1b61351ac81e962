package rabbitmq

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/drip-go/drip/internal/oktest"
)

// A server that accepts a connection and says nothing holds up no call for ever, also if the caller's context has no end.
func TestServerSaysNothing(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	oktest.OK(t, err)
	defer silent.Close()

	b, err := New("amqp://"+silent.Addr().String()+"?connection_timeout=50", "orders")
	oktest.OK(t, err)
	defer b.Close()
	for name, call := range map[string]func(context.Context) error{
		"Look": func(ctx context.Context) error { _, err := b.Look(ctx, "orders"); return err },
		"Dead": func(ctx context.Context) error { _, _, err := b.Dead(ctx, "orders", 1); return err },
	} {
		if err := call(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s = %v, want DeadlineExceeded", name, err)
		}
	}
}
