package rabbitmq

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
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

// A broker that no longer answers on a connection which is open ends a Look, whose error says why.
func TestBrokerHangsAtALook(t *testing.T) {
	server := servers.OwnRabbitMQ(t)
	b, err := New(server.URL(), "orders")
	oktest.OK(t, err)
	defer b.Close()
	if _, err := b.Look(t.Context(), "orders"); !errors.Is(err, ErrNoQueue) {
		t.Fatal(err)
	}
	oktest.OK(t, server.Pause())
	if _, err := b.Look(t.Context(), "others"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Look = %v, want DeadlineExceeded", err)
	}
	oktest.OK(t, server.Resume())
}
