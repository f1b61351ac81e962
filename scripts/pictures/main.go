// Pictures draws the limits page while the demo runs:
//
//	go run ./scripts/pictures -into docs bin/demo
//
// It needs Chromium, Redis and RabbitMQ.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/browser"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/page"
	"github.com/drip-go/drip/queues/rabbitmq"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/redis"
)

// limits are the limits of the demo that each message is within.
var limits = drip.Options{Size: 15, RefreshRate: 10, Shared: map[string]drip.Limit{
	"app": {Size: 118, RefreshRate: 2, RefreshInterval: 25 * time.Millisecond},
}}

func main() {
	into := flag.String("into", "docs", "the `folder` for the pictures")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "pictures: where is the demo?")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Arg(0), *into); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, demo, into string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	b, err := browser.Start()
	if err != nil {
		return err
	}
	defer b.Close()
	redis, err := servers.StartRedis(ctx)
	if err != nil {
		return err
	}
	defer redis.Stop()
	broker, err := servers.StartRabbitMQ(ctx)
	if err != nil {
		return err
	}
	defer broker.Stop()
	cmd := exec.CommandContext(ctx, demo, "-metrics=")
	cmd.Env = append(os.Environ(), "DRIP_REDIS_URL="+redis.URL(), "DRIP_RABBITMQ_URL="+broker.URL())
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer cmd.Process.Signal(os.Interrupt)

	s, err := storage.Open(ctx, redis.URL())
	if err != nil {
		return err
	}
	var names []string
	for len(names) < 12 { // until all shops have orders
		if names, err = entities.Names(ctx, s, ""); err != nil {
			return err
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	if err := sleep(ctx, 10*time.Second); err != nil { // until the use of the first seconds is stored
		return err
	}
	queue, _, _ := strings.Cut(names[0], ".")
	if err := trouble(ctx, s, broker.URL(), queue); err != nil {
		return err
	}
	q, err := rabbitmq.New(broker.URL(), queue)
	if err != nil {
		return err
	}
	defer q.Close()
	h, err := page.Handler(page.Options{
		Storage: s, Limits: &limits, Broker: q, Allow: func(*http.Request, page.Action) (string, bool) { return "pictures", true },
	})
	if err != nil {
		return err
	}
	defer h.Close()
	server := httptest.NewServer(h)
	defer server.Close()
	first, err := http.Get(server.URL) // the page reads its list in the background from now on
	if err != nil {
		return err
	}
	first.Body.Close()
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	return pictures(ctx, b, server.URL, into, queue)
}

// trouble pauses a shop and gives up some messages, so that there is something to see.
func trouble(ctx context.Context, s storage.Storage, url, queue string) error {
	e, err := entities.Open(ctx, s, queue+".shop-03")
	if err != nil {
		return err
	}
	if _, err := e.Pause(ctx, 10*time.Minute); err != nil {
		return err
	}
	return servers.WithChannel(url, func(ch *amqp.Channel) error {
		for i, reason := range []string{"failed", "failed", "too old"} {
			err := ch.PublishWithContext(ctx, "", queue+".drip.dead", true, false, amqp.Publishing{
				MessageId: fmt.Sprint("order-", 4000+i), Body: fmt.Appendf(nil, `{"order": %d, "shop": "shop-0%d"}`, 4000+i, i+1),
				Headers: amqp.Table{
					"x-drip-reason": reason, "x-drip-error": "the shop has no such product", "x-drip-attempts": int64(5), "x-drip-postponements": int64(i), "x-drip-age-ms": int64(61_000 * (i + 1)),
				},
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// pictures goes through the page.
func pictures(ctx context.Context, b *browser.Browser, at, into, queue string) error {
	shop := "/entity?name=" + queue + ".shop-05"
	for _, p := range []struct {
		name, address string
		width, height int
		dark          bool
	}{
		{"page-entities", "/", 1200, 720, false},
		{"page-entity", shop, 1200, 900, true},
		{"page-phone", shop, 390, 844, false},
		{"page-dead", "/dead?queue=" + queue, 1200, 640, false},
	} {
		tab, err := b.Open(ctx, p.width, p.height, p.width < 600)
		if err == nil {
			err = tab.Dark(ctx, p.dark)
		}
		if err == nil { // a little after a second begins, when tokens are out
			err = sleep(ctx, time.Until(time.Now().Truncate(time.Second).Add(1080*time.Millisecond)))
		}
		if err == nil {
			err = tab.Go(ctx, at+p.address)
		}
		if err == nil {
			err = sleep(ctx, 300*time.Millisecond) // animations end
		}
		var png []byte
		if err == nil {
			png, err = tab.Picture(ctx)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(into, p.name+".png"), png, 0o666)
		}
		if problems := tab.Problems(); err == nil && len(problems) > 0 {
			err = errors.New(strings.Join(problems, "\n"))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Printf("%s.png: %d kB\n", p.name, len(png)/1000)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
