package main

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	dripamqp10 "github.com/drip-go/drip/adapters/amqp10"
	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestRun(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	exampletest.Runs(t, shops*perShop, func(ctx context.Context, out io.Writer) error {
		err := run(ctx, url, out)
		if errors.Is(err, dripamqp10.ErrBroker) {
			t.Skip(err)
		}
		return err
	})
}
