package consumer_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/redis"
)

// childVariable, when set, makes this test binary a consumer process: see child.
const childVariable = "DRIP_TEST_CONSUMER"

func TestMain(m *testing.M) {
	if job := os.Getenv(childVariable); job != "" {
		if err := child(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(servers.Main(m))
}

type job struct{ RabbitMQ, Redis, Queue string }

// run is a line of a child's output: a message it has handled.
type run struct {
	Message, Entity string
	Millisecond     int64
}

const (
	entities   = 20
	perEntity  = 500
	size, rate = 100, 50 // a second
)

// published is the message number n of an entity, which the handler must see as it is.
func published(entity string, n int) amqp.Publishing {
	return amqp.Publishing{
		Headers:       amqp.Table{"shop": entity, "number": int32(n), "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		Priority:      uint8(n % 10),
		CorrelationId: fmt.Sprint("correlation ", n),
		MessageId:     fmt.Sprint(entity, " ", n),
		Timestamp:     time.Unix(1_700_000_000+int64(n), 0),
		Type:          "order",
		AppId:         "shop",
		Body:          fmt.Appendf(nil, `{"shop":%q,"n":%d}`, entity, n),
	}
}

// child consumes until its input ends, and writes what it handles.
func child(config string) error {
	var j job
	if err := json.Unmarshal([]byte(config), &j); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	s, err := storage.Open(ctx, j.Redis)
	if err != nil {
		return err
	}
	bucket, err := drip.New(drip.Options{Size: size, RefreshRate: rate, Start: time.Unix(0, 0), Storage: s})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	c, err := consumer.New(consumer.Options{
		URL: j.RabbitMQ, Queue: j.Queue, Limiter: bucket,
		Entity: func(d *amqp.Delivery) (string, error) {
			shop, _ := d.Headers["shop"].(string)
			return shop, nil
		},
		Handler: consumer.HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			entity, n := d.Headers["shop"].(string), int(d.Headers["number"].(int32))
			got := amqp.Publishing{
				Headers: d.Headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
				CorrelationId: d.CorrelationId, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
			}
			if want := published(entity, n); !reflect.DeepEqual(got, want) || d.RoutingKey != j.Queue || d.Exchange != "" {
				return fmt.Errorf("the handler got %+v from %q %q, published was %+v", got, d.Exchange, d.RoutingKey, want)
			}
			mu.Lock()
			defer mu.Unlock()
			return out.Encode(run{d.MessageId, entity, time.Now().UnixMilli()})
		}),
	})
	if err != nil {
		return err
	}
	return errors.Join(c.Run(ctx), s.(io.Closer).Close())
}

func TestTwoProcesses(t *testing.T) {
	j := job{servers.UseRabbitMQ(t).URL(), servers.UseRedis(t).URL(), fmt.Sprint("orders", time.Now().UnixNano())}
	publish(t, j)
	config, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	runs := make(chan run, entities*perEntity)
	var children sync.WaitGroup
	var stops []io.Closer
	for range 2 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"="+string(config))
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stops = append(stops, in)
		children.Go(func() {
			handled := 0
			for lines := bufio.NewScanner(out); lines.Scan(); handled++ {
				var r run
				if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
					t.Errorf("%s: %v", lines.Text(), err)
				}
				runs <- r
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if handled == 0 {
				t.Error("a process handled nothing")
			}
		})
	}
	times := map[string]int{}
	at := map[string][]int64{}
	deadline := time.After(3 * time.Minute)
	for len(times) < entities*perEntity {
		select {
		case r := <-runs:
			times[r.Message]++
			at[r.Entity] = append(at[r.Entity], r.Millisecond)
		case <-deadline:
			t.Fatalf("%d of %d messages were handled", len(times), entities*perEntity)
		}
	}
	for _, stop := range stops {
		stop.Close()
	}
	children.Wait()
	close(runs)
	for r := range runs {
		times[r.Message]++
	}
	for message, n := range times {
		if n != 1 {
			t.Errorf("message %s was handled %d times", message, n)
		}
	}
	// What begins in an interval was let in that one or, when the process was slow, in the one before.
	for entity, ms := range at {
		slices.Sort(ms)
		for i := range ms {
			for k := i; k < len(ms); k++ {
				intervals := int(ms[k]/1000 - ms[i]/1000 + 1)
				if n := k - i + 1; n > size+rate*(intervals+1) {
					t.Fatalf("%s: %d runs in %d seconds", entity, n, intervals)
				}
			}
		}
	}
}

func publish(t *testing.T, j job) {
	conn, err := amqp.Dial(j.RabbitMQ)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(j.Queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var last *amqp.DeferredConfirmation
	for n := range perEntity {
		for e := range entities {
			if last, err = ch.PublishWithDeferredConfirm("", j.Queue, true, false, published(fmt.Sprint("shop-", e), n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !last.Wait() {
		t.Fatal("the broker did not confirm the messages")
	}
}
